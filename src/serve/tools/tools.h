/*
 * tools.h - the parts of a model's answer: content, reasoning and calls of tools, told apart while
 * the text comes. A family of models writes calls in a form of its own; the chat template says
 * which. tools_forms.c has the table of forms and finds a template's. tools.c is the parser, with
 * tools_call.c (calls as JSON), tools_params.c (as tags), tools_json.c below it and tools_harmony.c
 * (gpt-oss's channels) beside it. tools_grammar.c has the grammar of a call.
 *
 *     serve_tools_style_detect(template, len, &style);
 *     params.special = serve_tools_style_special(&style, model);
 *     serve_tools_create(&style, &options, &parser, &err);
 *     serve_tools_feed(parser, piece, len, &err);   for each piece of the answer
 *     serve_tools_finish(parser, ended, &err);
 *
 * Promises:
 * - Held back is only what may begin a marker, white space before one, a character that is not all
 *   there, and a call until it has ended: a model may break it with any byte. Calls that a grammar
 *   holds (options.sure) cannot break, and are told while they come.
 * - However a text is split into pieces, the events say the same when neighbours are joined.
 * - Arguments of a call that ended are one JSON object. Control characters that a model left bare
 *   in strings are escaped.
 * - What is no call after all is content, byte for byte. It was never told as a call, so that
 *   nothing is ever taken back.
 * - Without tools in the request nothing is read as a call; reasoning is.
 */
#ifndef PI_SERVE_TOOLS_H
#define PI_SERVE_TOOLS_H

#include <jansson.h>

#include "base/base.h"
#include "serve/json.h"

/* ---- forms ---- */

enum serve_tool_form {
    SERVE_TOOLS_GENERIC,    /* the template knows no tools: serve_tools_instructions explains them;
                                 read as HERMES, LLAMA3 and a fenced JSON object */
    SERVE_TOOLS_HERMES,     /* <tool_call>{"name", "arguments"}</tool_call>: Qwen2.5, Qwen3 */
    SERVE_TOOLS_QWEN_CODER, /* <tool_call><function=X><parameter=k>v: Qwen3-Coder, Qwen3.5 */
    SERVE_TOOLS_LLAMA3,     /* a bare {"name", "parameters"}, or behind <|python_tag|> */
    SERVE_TOOLS_MISTRAL,    /* [TOOL_CALLS][{...}]: Nemo */
    SERVE_TOOLS_MISTRAL_ARGS, /* [TOOL_CALLS]X[ARGS]{...}: Small 3.2, Ministral 3 */
    SERVE_TOOLS_GPT_OSS,      /* channels: commentary to=functions.X */
    SERVE_TOOLS_DEEPSEEK,     /* <|tool_calls_begin|> ...: V3.1, R1 */
    SERVE_TOOLS_DSML,         /* DeepSeek V3.2, V4 */
    SERVE_TOOLS_KIMI,         /* Kimi K2 */
    SERVE_TOOLS_GLM,          /* <tool_call>X<arg_key>k</arg_key><arg_value>v: GLM 4, Laguna */
    SERVE_TOOLS_SEED,         /* as QWEN_CODER in <seed:tool_call> */
    SERVE_TOOLS_MINIMAX,      /* <minimax:tool_call><invoke name="X"> */
    SERVE_TOOLS_MINICPM,      /* <function name="X"><param name="k">v */
    SERVE_TOOLS_FUNCTIONARY,  /* <function=X>{...}</function>: v3.1 */
    SERVE_TOOLS_SOLAR,        /* <|tool_call:begin|>id<|tool_call:name|>X<|tool_call:args|>{...} */
    SERVE_TOOLS_COHERE,       /* <|START_ACTION|>[{"tool_name", "parameters"}] */
    SERVE_TOOLS_LIST,         /* <tool_calls>[{...}]</tool_calls>: Apriel, MiniMax M1 */
    SERVE_TOOLS_NEMOTRON,     /* <TOOLCALL>[{...}]</TOOLCALL> */
    SERVE_TOOLS_APERTUS,      /* <|tools_prefix|>[{"X": {...}}]<|tools_suffix|> */
    SERVE_TOOLS_GRANITE,      /* <|tool_call|>[{...}]: 3.3 */
    SERVE_TOOLS_N_FORM
};

/* How a model writes. Its strings live for ever. */
struct serve_tools_style {
    enum serve_tool_form form;
    const char *think_open; /* "<think>" where the template names no tags */
    const char *think_close;
    bool plain; /* it names none */
};

const char *serve_tools_form_name(enum serve_tool_form form);
/* Whether texts stand in calls as they are, between tags. A grammar takes any of them. */
bool serve_tools_has_tags(enum serve_tool_form form);

/* The style of models with this chat template, by the markers that stand in its text. An empty text
   is GENERIC. */
void serve_tools_style_detect(const char *text, size_t len, struct serve_tools_style *out);

/* Whether markers of the style are control tokens of the model, which are not printed unless
   params.special is set: so for gpt-oss, Mistral and DeepSeek. End tokens
   are not printed either way. The parser drops markers, and no other control tokens. */
bool serve_tools_style_special(const struct serve_tools_style *style, const pith_model *model);

/* Whether a prompt ends within reasoning: behind think_open, with nothing of an answer after it. */
bool serve_tools_prompt_thinks(const struct serve_tools_style *style, const char *prompt,
                               size_t len);

/* ---- the parser ---- */

enum serve_tools_event_type {
    SERVE_TOOLS_CONTENT,    /* text */
    SERVE_TOOLS_REASONING,  /* text */
    SERVE_TOOLS_CALL_START, /* index, id, name */
    SERVE_TOOLS_CALL_ARGS,  /* index, text: the next part of the arguments, as JSON */
    SERVE_TOOLS_CALL_END,   /* index; complete: false where the answer stopped in it */
};

/* Strings are borrowed until the callback returns. */
struct serve_tools_event {
    enum serve_tools_event_type type;
    int32_t index;    /* of the call, from 0 */
    const char *id;   /* terminated */
    const char *name; /* terminated */
    const char *text; /* [len], not terminated, ends at a character */
    size_t len;
    bool complete;
};

typedef void serve_tools_event_fn(void *user, const struct serve_tools_event *event);

struct serve_tools_options {
    const json_t *tools;    /* the request's array, {"type": "function", "function": {...}} or the
                               functions themselves ({"name", "parameters" or "input_schema"});
                               borrowed until free. NULL or empty: no calls */
    bool thinking;          /* the prompt ends within reasoning (serve_tools_prompt_thinks) */
    bool reasoning_is_text; /* reasoning is not told apart, its tags are content (gpt-oss: its
                               reasoning is content without tags) */
    bool constrained; /* AUTO with a grammar: calls are only what that has constrained, from its
                         trigger on; what else looks like a call is content */
    bool sure;        /* a grammar holds calls, so that they are told while they come */
    bool whole;       /* the answer is calls or JSON, which loses the fence about it: behind JSON
                         nothing is a call */
    bool no_alone;    /* constrained: an object alone is text */
    bool one_call;    /* parallel_tool_calls false: further calls are left out */
    const char *request_id; /* ids of calls are made of it and the index; copied. NULL: "" */
    serve_tools_event_fn *on_event;
    void *user;
};

struct serve_tools;

/* NOMEM. */
pith_status serve_tools_create(const struct serve_tools_style *style,
                               const struct serve_tools_options *options, struct serve_tools **out,
                               pith_error *err);
void serve_tools_free(struct serve_tools *t); /* NULL is ignored */

/* The next bytes of the answer. NOMEM: the answer must end, the parser can only be freed. */
pith_status serve_tools_feed(struct serve_tools *t, const char *text, size_t len, pith_error *err);

/* The answer has ended, or was cut off (cut: the limit of tokens, a client that went away). Tells
   what was held back. A call whose arguments have begun ends with complete false where the answer
   was cut, and is content where the model ended it. Markers behind a call that were cut say
   nothing. */
pith_status serve_tools_finish(struct serve_tools *t, bool cut, pith_error *err);

/* Whether what came last is in a call, or in the markers about it. */
bool serve_tools_in_call(const struct serve_tools *t);

/* Calls that ended complete, so far: where there are any, finish_reason is "tool_calls". */
int32_t serve_tools_count(const struct serve_tools *t);

/* ---- what the prompt and the sampler need ---- */

/* For a GENERIC style: the text for the system message that explains the tools and their form. The
   caller frees with pi_mem_free. */
pith_status serve_tools_instructions(const json_t *tools, const struct serve_numbers *numbers,
                                     char **out, pith_error *err);

enum serve_tools_choice {
    SERVE_TOOLS_AUTO,      /* free text until a call begins, which then follows the grammar */
    SERVE_TOOLS_REQUIRED,  /* calls from the first token on (behind reasoning, where it may come) */
    SERVE_TOOLS_OR_ANSWER, /* so, or an answer of a schema in their place */
};

struct serve_tools_schema {
    char *rule;   /* the name of a rule that the GBNF text uses and does not define */
    char *schema; /* its JSON schema, as text */
    /* A schema for one that cannot be read, as nothing is promised. Constant; NULL: that is a
       fault. */
    const char *otherwise;
};

/* The grammar of calls in a form: GBNF whose arguments are rules left to the compiler of
   schemas. */
struct serve_tools_grammar {
    char *gbnf;
    struct serve_tools_schema *schemas; /* [n_schema] */
    size_t n_schema;
    /* [n_trigger] AUTO: where the answer is held to the grammar, whose texts begin with one of
       them. The first n_first count only where the answer begins with them. Constant. */
    const char *const *triggers;
    int32_t n_trigger, n_first;
};

struct serve_tools_grammar_options {
    const json_t *tools;
    const struct serve_numbers *numbers; /* of tools; NULL: none */
    const char *name; /* tool_choice names a function: this one alone; NULL: any */
    enum serve_tools_choice choice;
    const char *answer; /* OR_ANSWER: the JSON schema. The rule "other" has texts of it */
    bool no_alone;      /* OR_ANSWER: an object alone is an answer, as one might begin alike */
    bool parallel;      /* several calls may follow each other */
    bool thinking;      /* not AUTO: the prompt ends within reasoning, which is free text up to its
                           tag */
};

/* The triggers of AUTO's grammar, as in serve_tools_grammar; thinks: the answer begins within
   reasoning, so that none of them can begin it. NULL: the form has no grammar. */
const char *const *serve_tools_triggers(enum serve_tool_form form, bool thinks, int32_t *n,
                                        int32_t *n_first);

/* INVALID: there is no tool, none of the name, or a tool is malformed. UNSUPPORTED: the form has no
   grammar. NOMEM. */
pith_status serve_tools_grammar_create(const struct serve_tools_style *style,
                                       const struct serve_tools_grammar_options *options,
                                       struct serve_tools_grammar *out, pith_error *err);
void serve_tools_grammar_free(struct serve_tools_grammar *g);

#endif
