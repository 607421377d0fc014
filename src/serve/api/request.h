/*
 * request.h - the body of a request, as six APIs write it, made a request for the scheduler. That
 * is the prompt's tokens, parameters, and the facts that its reply must know. It touches no file,
 * no socket, no engine and no clock. A wrong body is refused with a fault that names field and
 * value. It is never answered as if it said something else; unknown fields are passed over.
 *
 * Threads: all functions are thread-safe for different requests; a request is immutable once it is
 * made, and the model and the setup must outlive it.
 */
#ifndef PI_SERVE_REQUEST_H
#define PI_SERVE_REQUEST_H

#include "pith/scheduler.h"

enum serve_api {
    SERVE_CHAT,       /* POST /v1/chat/completions */
    SERVE_TEXT,       /* POST /v1/completions */
    SERVE_COMPLETION, /* POST /completion, llama-server's own */
    SERVE_INFILL,     /* POST /infill */
    SERVE_MESSAGES,   /* POST /v1/messages: Anthropic's */
    SERVE_RESPONSES,  /* POST /v1/responses: OpenAI's, without a memory of earlier ones */
    SERVE_COUNT,      /* POST /v1/messages/count_tokens: a SERVE_MESSAGES that is not answered */
};

#define SERVE_STOPS_MAX 16
#define SERVE_FIELDS_MAX 64   /* of response_fields */
#define SERVE_TOP_MAX 20      /* of top_logprobs, logprobs and n_probs */
#define SERVE_ANSWERS_MAX 128 /* of one request, over all its prompts */

/* The settings that requests have in common. Immutable; strings are borrowed. Zero it, then
   serve_setup_default.
    */
struct serve_setup {
    const pith_model *model;   /* NULL: bodies are judged only, no prompts are made */
    const char *alias;         /* the name that replies give the model; NULL: its own */
    const char *template_name; /* of a chat template that comes along; NULL: the next */
    const char *template_text; /* a chat template; NULL: the model's own */
    const char *system;        /* a chat without system message begins with this; NULL: none */
    bool no_thinking;          /* unless a request says otherwise */
    bool no_stream;            /* a request may not stream: `pith batch` */
    bool no_timings;           /* replies have none: only "created" is the clock's */
    bool no_bos;               /* the tokens that the model wants around a text are left out */
    bool plain_prompts;        /* names of special tokens in prompts are text, not those tokens */
    bool can_score_prompt;     /* on_prompt is there, so that echo with logprobs can be answered */
    int32_t n_ctx;             /* most tokens of a sequence; 0: the scheduler judges that */
    int32_t n_slot;            /* an id_slot below this is a slot; 0: the field is passed over */
    bool finds;                /* conversations go on where no slot is named, too */
    bool pins;                 /* a keep policy pins what such a chat begins with */
    int64_t now;               /* local seconds since 1970 for templates; 0: none */
    pith_generate_params params; /* of requests that do not say */
    uint64_t any_seed;           /* what "seed": -1 means this time */
};

void serve_setup_default(struct serve_setup *setup);

/* Why a request is refused or failed. Zero: it is not. */
struct serve_fault {
    int code;                /* as of HTTP: 400, 404, 405, 500, 501 */
    const char *type;        /* constant: "invalid_request_error" */
    const char *param;       /* constant: the field; NULL: none */
    char message[512];       /* one sentence that names field and value */
    int64_t n_prompt_tokens; /* with type "exceed_context_size_error" */
    int64_t n_ctx;
};

/* Refuses, unless something else is wrong already. */
void serve_fault_set(struct serve_fault *fault, int code, const char *type, const char *param,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* The meaning of a status of pith_scheduler_submit or of an answer's result; BUSY is 503.
   n_prompt and n_ctx (0: unknown) go with a prompt that is too long. */
void serve_fault_status(struct serve_fault *fault, pith_status status, const char *message,
                        int64_t n_prompt, int64_t n_ctx);

/* The number that a name stands for in pith_request.session. Never 0. */
uint64_t serve_name_hash(const char *text, size_t len);

struct serve_request;

/* Reads a body [len]. OK: *out is the caller's to free. INVALID: *fault says why. NOMEM: *fault
   says so, too (code 500). */
pith_status serve_request_parse(const struct serve_setup *setup, enum serve_api api,
                                const char *body, size_t len, struct serve_request **out,
                                struct serve_fault *fault);
void serve_request_free(struct serve_request *r);

/* Requests to submit, one for each prompt; each has n_answer answers. */
int32_t serve_request_count(const struct serve_request *r);
/* Fills prompt, params, n_pin, n_answer, priority and deadline. params have the seed of prompt i;
   *params is the caller's, needed until the request is submitted. Slot, salt, callbacks and user
   *are the
   caller's to set. */
void serve_request_get(const struct serve_request *r, int32_t i, pith_generate_params *params,
                       pith_request *out);
int32_t serve_request_answers(const struct serve_request *r); /* of all prompts together */

enum serve_api serve_request_api(const struct serve_request *r);
const char *serve_request_model(const struct serve_request *r); /* as given; NULL: not */
bool serve_request_streams(const struct serve_request *r);
int32_t serve_request_slot(const struct serve_request *r);        /* id_slot; -1: any */
bool serve_request_caches(const struct serve_request *r);         /* cache_prompt, default true */
uint64_t serve_request_salt(const struct serve_request *r);       /* of cache_salt; 0: none */
uint64_t serve_request_session(const struct serve_request *r);    /* of its conversation; 0: none */
double serve_request_timeout(const struct serve_request *r);      /* seconds; 0: none */
bool serve_request_wants_progress(const struct serve_request *r); /* return_progress */
bool serve_request_wants_prompt(const struct serve_request *r);   /* logits of prompt tokens */

/* Tokens of all prompts: what count_tokens answers. */
int64_t serve_request_n_prompt(const struct serve_request *r);
/* The rendered prompt of an API with messages, [*len], the request's; NULL: it has none. This is
   what /apply-template answers. */
const char *serve_request_text(const struct serve_request *r, size_t *len);

#endif
