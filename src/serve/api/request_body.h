/*
 * request_body.h - shared by the readers of the six APIs: the request while it is being read, and
 * its memory. And values of JSON, with a sentence for each that is wrong. For request*.c and
 * reply*.c.
 */
#ifndef PI_SERVE_REQUEST_BODY_H
#define PI_SERVE_REQUEST_BODY_H

#include <jansson.h>

#include "pith/grammar.h"
#include "serve/json.h"
#include "serve/api/request.h"
#include "serve/tools/tools.h"

#define SERVE_INVALID "invalid_request_error"
#define SERVE_CONTEXT "exceed_context_size_error" /* llama-server's type */

struct serve_prompt {
    const char *text; /* [len] as given, for echo; NULL: ids were given, or a chat */
    size_t len;
    int32_t *ids; /* [n_id] */
    int32_t n_id;
    const char *message; /* [message_len] what recall of text finds a question in; NULL: nothing */
    size_t message_len;
};

enum serve_choice { SERVE_CHOICE_AUTO, SERVE_CHOICE_NONE, SERVE_CHOICE_REQUIRED };

/* The body, as it was parsed. request.c writes it. */
struct request_source {
    void *block;                  /* the memory of borrowed parts of the request */
    json_t *json;                 /* owned: the body */
    struct serve_numbers numbers; /* texts of its numbers */
    json_t *body; /* owned: the body, or the OpenAI chat that it was translated to */
    json_t *chat; /* owned: what the template sees; NULL: no messages. request_chat.c */
};

/* The tokens to evaluate. request_prompts.c, request_chat.c and request_infill.c write it. */
struct request_prompts {
    struct serve_prompt *item; /* [n] */
    int32_t n;
    pith_prompt *rendered; /* owned; NULL: no messages */
    const char *opening;   /* [opening_len] of the answer, given as the last message; NULL: none */
    size_t opening_len;
    bool no_thinking, no_generation_prompt, continues;
};

/* The reuse of conversations and prefixes. request_fields.c and request_session.c write it,
   request_chat.c n_system. */
struct request_cache {
    int32_t slot;
    int32_t n_keep;   /* tokens of the prompt that a keep policy may pin; -1: all, 0: not said */
    int32_t n_system; /* of a chat in a slot: those before its first word; 0: not counted */
    uint64_t salt;
    uint64_t session;   /* of the conversation's name; 0: none */
    const char *budget; /* of its sequences alone; NULL: the engine's */
    bool caches;
};

/* The content of the reply. request_fields.c writes it. */
struct request_reply {
    bool stream, include_usage, echo, timings_per_token, return_progress, return_tokens;
    int32_t top_logprobs; /* tokens beside each token; -1: no logprobs */
    bool after_sampling;  /* post_sampling_probs: what was drawn from, not what the model said */
    bool keeps_reasoning; /* reasoning_format none: thoughts stay in the content */
    int32_t predict_ms; /* t_max_predict_ms: of an answer that has a line, once it began; 0: none */
    const json_t *response_fields; /* paths that /completion is to answer; NULL: everything */
};

/* Calls of tools. request_tools.c writes it, request_style.c the style. */
struct request_calls {
    const json_t *tools; /* of chat, OpenAI's form; NULL: none may be called */
    enum serve_choice choice;
    const char *name;               /* with REQUIRED: the one; NULL: any */
    bool one;                       /* parallel_tool_calls: false */
    bool strict;                    /* none need be called, but a grammar holds calls */
    bool or_answer;                 /* a grammar holds the whole answer: calls, or text */
    bool no_alone;                  /* or_answer: an object alone is an answer */
    bool fits;                      /* a custom tool's input is to fit an expression */
    bool explained;                 /* the first message is ours, and tells of the tools */
    struct serve_tools_style style; /* of messages */
};

/* The form of the answer. request_format.c writes it. */
struct request_format {
    pith_grammar *grammar; /* owned; NULL: anything */
    const char *field;     /* the field that said so; NULL: none */
};

struct serve_request {
    enum serve_api api;
    const struct serve_setup *setup;
    const char *model_name; /* what replies call the model */
    const char *model;      /* as given; NULL: not */
    pith_generate_params params;
    int32_t n_answer; /* to each prompt */
    float timeout_s;
    int32_t priority; /* as given: lower ones come first */
    struct request_source source;
    struct request_prompts prompts;
    struct request_cache cache;
    struct request_reply reply;
    struct request_calls calls;
    struct request_format format;
};

struct serve_reader {
    const struct serve_setup *setup;
    struct serve_request *r;
    struct serve_fault *fault;
};

/* ---- request_json.c ---- */

/* Zeroed memory of the request's; NULL: there is none, which is a fault then. */
void *request_alloc(struct serve_reader *rd, size_t n, size_t size);
void request_blocks_free(void *block);
bool request_is_bad(const struct serve_reader *rd);

#define SERVE_FAULT(rd, param, ...)                                                                \
    serve_fault_set((rd)->fault, 400, SERVE_INVALID, param, __VA_ARGS__)
void request_no_memory(struct serve_reader *rd);
/* The value itself, or a fault where there was no memory for it. */
json_t *request_need(struct serve_reader *rd, json_t *value);
/* Takes value over. */
void request_set(struct serve_reader *rd, json_t *object, const char *key, json_t *value);
void request_append(struct serve_reader *rd, json_t *array, json_t *value);

/* serve_show of a value of the body; a number is shown as it was written. */
const char *request_show(const struct serve_reader *rd, const json_t *value, char *buf);

/* The value of a key; NULL where there is none or null. */
json_t *request_get(const json_t *object, const char *key);
bool request_whole(const json_t *value, int64_t *out);
/* A number above all whole ones that request_whole reads, whose fraction no double has. */
bool request_huge(const json_t *value);
/* A whole number that is the most of something; one that is above all limits is the highest. */
bool request_ceiling(const json_t *value, int32_t *out);
/* A whole number of 64 bits, with or without sign. */
bool request_seed(const struct serve_reader *rd, const json_t *value, uint64_t *out);
void request_wrong_type(struct serve_reader *rd, const char *key, const json_t *value,
                        const char *expected);
/* The value of a key that is a string without U+0000: a name or a word. NULL: there is none, or a
   fault. */
const char *request_string(struct serve_reader *rd, const char *param, const char *where,
                           const json_t *value);
/* Whether value is a string, which may have any characters; else a fault. */
bool request_text(struct serve_reader *rd, const char *param, const char *where,
                  const json_t *value);
/* Whether value is the string. */
bool request_is(const json_t *value, const char *word);
/* The place of a string among words that end with NULL; -1 with a fault. */
int request_word(struct serve_reader *rd, const char *param, const char *where, const json_t *value,
                 const char *const *words);
/* A string of any bytes: what is not UTF-8 becomes U+FFFD. NULL: no memory. */
json_t *serve_json_text(const char *text, size_t len);
/* The text [*n] with U+FFFD for bytes that are no character; the caller frees. NULL: no memory. */
char *serve_characters(const char *text, size_t len, size_t *n);

/* ---- the readers ---- */

void request_read_fields(struct serve_reader *rd, const json_t *body);        /* request_fields.c */
void request_read_biases(struct serve_reader *rd, const json_t *bias);        /* request_bias.c */
void request_read_samplers(struct serve_reader *rd, const json_t *samplers);  /* .._samplers.c */
void request_refuse_unsupported(struct serve_reader *rd, const json_t *body); /* .._refused.c */
void request_read_session(struct serve_reader *rd, const json_t *body);       /* .._session.c */
void request_read_format(struct serve_reader *rd, const json_t *body);        /* request_format.c */
void request_read_chat(struct serve_reader *rd, const json_t *body);          /* request_chat.c */
void request_read_tools(struct serve_reader *rd, const json_t *body);         /* request_tools.c */
/* request_grammar.c: whether a schema is one that can be promised; err says why not. */
pith_status request_check_schema(const char *schema, pith_error *err);
/* request_custom.c: a custom tool as a function, and the arguments of a call of one; NULL: a fault.
   Whether a tool of the request is one. */
json_t *request_custom_function(struct serve_reader *rd, size_t i, const json_t *tool);
json_t *request_custom_arguments(struct serve_reader *rd, const char *where, json_t *input);
bool request_is_custom(const struct serve_request *r, const char *name);
void request_read_prompts(struct serve_reader *rd, const json_t *body); /* request_prompts.c */
void request_read_infill(struct serve_reader *rd, const json_t *body);  /* request_infill.c */
/* Bodies of other APIs as OpenAI's chat; a new reference. */
json_t *request_from_messages(struct serve_reader *rd, const json_t *body);
json_t *request_from_responses(struct serve_reader *rd, const json_t *body);

/* Tokens behind those that a prompt has. */
void request_tokenize(struct serve_reader *rd, struct serve_prompt *p, const char *text, size_t len,
                      uint32_t flags);
void request_find_style(struct serve_reader *rd); /* request_style.c: with a model */
/* Tells the user's first message of the tools, for templates that refuse a system message. False:
   none is ours. */
bool request_explain_to_user(struct serve_reader *rd);
void request_write_past(struct serve_reader *rd); /* request_past.c: calls and results as texts */
void request_make_chat(struct serve_reader *rd);  /* the prompt of messages */
/* request_names.c: the fields of its message as this API calls them. */
void request_rename_fault(struct serve_fault *fault, enum serve_api api);
/* request_grammar.c. INVALID, UNSUPPORTED, NOMEM. */
pith_status request_call_grammar(const pith_model *model, const struct serve_tools_style *style,
                                 const struct serve_tools_grammar_options *options,
                                 pith_grammar **out, pith_error *err);

/* ---- reply.c ---- */

#define SERVE_TOO_LONG "context_length_exceeded"
/* Whether the prompt leaves no room for an answer. */
bool serve_fault_is_context(const struct serve_fault *fault);
json_t *serve_fault_json(const struct serve_fault *fault, enum serve_api api); /* NULL: no memory */

#endif
