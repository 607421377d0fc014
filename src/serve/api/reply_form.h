/*
 * reply_form.h - what the replies of all APIs share: answers as they grow, and the form that makes
 * JSON of them. For reply*.c only.
 */
#ifndef PI_SERVE_REPLY_FORM_H
#define PI_SERVE_REPLY_FORM_H

#include "serve/api/reply.h"
#include "serve/api/reply_parse.h"
#include "serve/api/request_body.h"

struct reply_choice {
    int32_t id;
    float logprob; /* with post_sampling_probs the probability */
};

/* A token with what the model thought of it and of others. */
struct reply_token {
    struct reply_choice chosen;
    bool first;    /* of a text that nothing stands before: no probability */
    size_t offset; /* bytes of the text before it */
    int32_t n_top;
    struct reply_choice top[SERVE_TOP_MAX]; /* [n_top] the likeliest, best first */
};

struct reply_tokens {
    struct reply_token *at; /* [n]; owned */
    size_t n, cap;
    pith_utf8_stream utf8; /* of all tokens but the last */
    size_t n_text;         /* bytes of the text that came of them */
};

struct reply_call {
    char *id, *name; /* owned */
    struct serve_bytes args;
    bool ended, cut; /* cut: they are not all there */
    bool custom;     /* of a custom tool: they have its input */
};

enum reply_kind { REPLY_NOTHING, REPLY_CONTENT, REPLY_REASONING, REPLY_CALL };

struct reply_answer {
    struct serve_reply *reply;
    int32_t index;             /* among the answers of all prompts */
    struct reply_parse *parse; /* owned; NULL: all is content */
    struct serve_bytes content, reasoning;
    struct serve_bytes raw;  /* bytes of all tokens, with stop strings */
    struct reply_call *call; /* [n_call]; owned */
    size_t n_call, cap_call;
    struct reply_tokens tokens; /* with logprobs */
    size_t n_sent;              /* of them, in a stream */
    size_t n_text;              /* bytes that came, before they were parsed */
    int32_t *ids;               /* [n_id]; owned */
    size_t n_id, cap_id;
    bool begun, done;
    enum reply_kind said;      /* what the last event was */
    int32_t n_seen, n_thought; /* tokens so far, and of them, of reasoning */
    double first_s;            /* when the first came; timings_per_token, t_max_predict_ms */
    pith_stop_reason reason;
    int32_t last;      /* the token that came last; -1: none */
    int32_t stop_word; /* which of the request's ended it; -1: none */
    int32_t n_predict; /* the most tokens that it could get; -1: no number was given */
    int32_t n_prompt, n_cached, n_generated;
    int32_t n_from_park; /* of n_cached: of a parked conversation */
    int32_t slot;        /* where it stays; -1: nowhere */
    int32_t n_draft, n_draft_accepted;
    pith_reuse reuse;   /* why n_cached is not more */
    int32_t n_recalled; /* tokens of text that was read in front of the question */
    int32_t differs_at; /* the first token that is another; -1: none */
    double prompt_s, generate_s;
    pith_keep_stats kept;
    pith_recall_stats recalled;
    int64_t held_bytes, full_bytes;

    /* of forms with blocks */
    enum reply_kind open;
    int32_t n_block; /* so far; the open one is the last */
    size_t n_open;   /* bytes of content and reasoning before the open one */
    json_t *items;   /* owned: blocks that ended */
};

/* How an API says it. All but document, and event with blocks, are called for streams only. */
struct reply_form {
    bool parses;      /* content, reasoning and calls are told apart */
    bool blocks;      /* event makes the items of the document, too */
    const char *beat; /* of a stream that has nothing to say; NULL: a comment */
    void (*begin)(struct reply_answer *a);
    void (*event)(struct reply_answer *a, const struct reply_event *event);
    void (*end)(struct reply_answer *a);
    void (*finish)(struct serve_reply *reply);
    void (*fault)(struct serve_reply *reply);
    void (*progress)(struct reply_answer *a, json_t *progress); /* takes progress over; or NULL */
    json_t *(*document)(struct serve_reply *reply);
};

extern const struct reply_form reply_form_chat, reply_form_text, reply_form_completion,
    reply_form_messages, reply_form_responses;

struct serve_reply {
    const struct serve_request *r;
    const struct reply_form *form;
    int64_t now;
    char id[33];
    struct reply_answer *answer; /* [n_answer] */
    struct reply_tokens *scored; /* [n_prompt] tokens of prompts, for echo with logprobs */
    struct serve_bytes *echo;    /* [n_prompt] texts of prompts, where they are wanted */
    int32_t n_answer, n_pending;
    double start_s; /* timings_per_token: when it was made */
    int code;
    bool events, finished, no_memory;
    struct serve_fault fault;
    struct serve_bytes *out;      /* during a call */
    struct serve_numbers numbers; /* texts of numbers that are in no body: of answers */
    int64_t n_event;              /* for forms that count them */
};

/* ---- reply.c ---- */

/* Notes that there was no memory where value is NULL; returns it. */
json_t *reply_need(struct serve_reply *reply, json_t *value);
void reply_set(struct serve_reply *reply, json_t *object, const char *key, json_t *value);
void reply_append(struct serve_reply *reply, json_t *array, json_t *value);
json_t *reply_text(struct serve_reply *reply, const struct serve_bytes *b);
json_t *reply_string(struct serve_reply *reply, const char *text, size_t len);
json_t *reply_stop(const struct reply_answer *a, json_t *none); /* the stop string, or none */
/* A string of a prefix and the reply's id. */
json_t *reply_id(struct serve_reply *reply, const char *prefix);
/* Sends a value as an event and frees it; name may be NULL. */
void reply_emit(struct serve_reply *reply, const char *name, json_t *value);
const char *reply_model(const struct serve_reply *reply);

/* ---- reply_openai.c ---- */

/* The input of a custom tool's call, which has ended: what its arguments say. */
json_t *reply_input(struct serve_reply *reply, const struct reply_call *call);

/* ---- reply_figures.c ---- */

json_t *reply_usage(struct serve_reply *reply);   /* OpenAI's */
json_t *reply_timings(struct serve_reply *reply); /* llama-server's, of all answers */
json_t *reply_timings_so_far(struct reply_answer *a);
double reply_clock_s(void);
int64_t reply_sum_generated(const struct serve_reply *reply);
int64_t reply_sum_cached(const struct serve_reply *reply);
bool reply_calls(const struct reply_answer *a);         /* whether it has calls */
bool reply_ends_in_calls(const struct reply_answer *a); /* and no stop string cut the last one */
/* Whether it has the only call that it may have: no more is told behind one with
   parallel_tool_calls false. A grammar ends its text itself. */
bool reply_has_its_call(const struct reply_answer *a);
const char *reply_finish(const struct reply_answer *a); /* stop, length, tool_calls */
void reply_set_kept(struct serve_reply *reply, json_t *usage);

/* ---- reply_logprobs.c ---- */

/* logits [n_vocab] say how likely id is; NULL: nothing does. */
void reply_tokens_add(struct serve_reply *reply, struct reply_tokens *tokens, int32_t id,
                      const float *logits);
/* The same, of the chances that the sampler drew id from. */
void reply_tokens_add_drawn(struct serve_reply *reply, struct reply_tokens *tokens, int32_t id,
                            pith_sampler *sampler);
void reply_tokens_free(struct reply_tokens *tokens);
/* Tokens from..to in the layout of chats, of texts, and of llama-server's own. */
json_t *reply_chat_logprobs(struct serve_reply *reply, const struct reply_tokens *tokens,
                            size_t from, size_t to);
json_t *reply_text_logprobs(struct serve_reply *reply, const struct reply_answer *a, size_t from,
                            size_t to);
json_t *reply_own_logprobs(struct serve_reply *reply, const struct reply_tokens *tokens,
                           size_t from, size_t to);
/* Tokens that the text so far holds the beginning of: tokens of a stop string are not in it. */
size_t reply_tokens_told(const struct reply_answer *a);

#endif
