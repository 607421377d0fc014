/*
 * tools_parser.h - the parser's insides, shared by tools*.c. A text goes through it byte by byte,
 * so that it cannot matter how it was split. Parts to tell are collected per piece (tools.c).
 *
 * raw has the text that may be a call, from its marker (and white space before it) on, until it is
 * one. Text that proves to be none is content again.
 */
#ifndef PI_SERVE_TOOLS_PARSER_H
#define PI_SERVE_TOOLS_PARSER_H

#include "serve/tools/tools.h"
#include "serve/tools/tools_json.h"

#define TOOLS_MARKER_MAX 16
#define TOOLS_NO_MARKER (-1)
#define TOOLS_TOLD (-2)
#define TOOLS_HEAD_MAX 256 /* bytes of a call's head: its name and what stands about it */

enum tools_body {
    TOOLS_BODY_JSON,   /* an object that holds name and arguments */
    TOOLS_BODY_NAMED,  /* the name, then the arguments as an object */
    TOOLS_BODY_PARAMS, /* the name, then keys and values between tags */
};

/* How calls are written. Lists end with NULL. A section begins with one of open and has one or
   several calls. */
struct tools_form {
    enum serve_tool_form form;
    const char *name;
    enum tools_body body;
    const char *open[4];      /* one that is in call_open too begins a call at once */
    const char *call_open[3]; /* begins a call in a section; none: its first byte does */
    const char *skip[4];      /* may stand behind a call, and means nothing */
    const char *close;        /* of the section; NULL: it ends with what is no call */
    bool bare;                /* an answer that begins with `{` may be a call */
    bool mixed;               /* NAMED: a section that begins with [ or { is JSON */
    bool key_is_name;         /* JSON: {"X": {arguments}} */
    const char *name_after;   /* NAMED: the name stands behind it, where it is there */
    const char *name_until[3];
    const char *head_end;    /* PARAMS: the characters that end a name */
    bool head_keep;          /* PARAMS: they belong to what follows */
    const char *key_open;    /* PARAMS */
    const char *value_open;  /* PARAMS: between key and value; NULL: the key's `>` */
    const char *value_close; /* PARAMS */
    bool lines;              /* PARAMS: a value stands on lines of its own */
    bool cdata;              /* PARAMS: a value may stand in <![CDATA[...]]> */
};

const struct tools_form *tools_form_of(enum serve_tool_form form);

struct tools_bytes {
    char *data; /* [len], owned */
    size_t len, cap;
};

enum tools_state {
    TOOLS_THINK,
    TOOLS_START, /* of the content: only white space so far */
    TOOLS_TEXT,
    TOOLS_BETWEEN, /* in a section, not in a call */
    TOOLS_HEAD,    /* NAMED, PARAMS: in the name */
    TOOLS_OBJECT,  /* JSON: in the object; NAMED: in the arguments */
    TOOLS_PARAM,   /* PARAMS: between parameters */
    TOOLS_KEY,
    TOOLS_VALUE_OPEN,
    TOOLS_VALUE,
    TOOLS_CHANNEL_HEAD, /* gpt-oss */
    TOOLS_CHANNEL_TEXT,
};

/* Of the fence about an answer in JSON. */
enum tools_fence {
    TOOLS_FENCE_UNKNOWN,
    TOOLS_FENCE_NONE,
    TOOLS_FENCE_OPENS, /* in its first line */
    TOOLS_FENCE_IN,
    TOOLS_FENCE_LINE, /* behind a line's end, which is not told yet */
    TOOLS_FENCE_CLOSED,
};

enum tools_role { TOOLS_ROLE_NONE, TOOLS_ROLE_NAME, TOOLS_ROLE_ARGS };

struct serve_tools {
    const struct tools_form *form;
    struct serve_tools_style style;
    struct serve_tools_options options;
    char *request_id; /* owned */
    bool calls;       /* calls may come */
    bool no_memory;
    enum tools_state state;

    /* Told at the end of the piece, or where another kind begins. */
    enum serve_tools_event_type out_type;
    struct tools_bytes out;

    /* Text. */
    struct tools_bytes held; /* [n_space white space][what may begin a marker] */
    size_t n_space;
    enum tools_fence fence;
    bool trim;                           /* white space at the beginning is dropped */
    bool after_call;                     /* only white space has come since */
    enum serve_tools_event_type channel; /* gpt-oss: what the message is */
    bool channel_call;                   /* or the arguments of a call */

    /* A section and a call. */
    struct tools_bytes raw;    /* see above */
    struct tools_bytes word;   /* TOOLS_BETWEEN, _PARAM, _VALUE_OPEN: what may become a marker */
    struct tools_bytes head;   /* the name; a channel's head; a key */
    struct tools_bytes args;   /* arguments that wait for the name */
    struct tools_bytes value;  /* of the JSON name, of coded arguments, of a parameter */
    struct tools_bytes call;   /* arguments of the call, until it has ended and is told */
    int32_t n_section;         /* calls of this section that are complete */
    bool thought;              /* the answer has reasoning, or a tag of it */
    bool fresh;                /* nothing of the section has come but its marker */
    bool bare;                 /* it has none: the name must be a tool's */
    bool as_json;              /* its calls are objects */
    struct tools_json json;    /* of the object */
    struct tools_json written; /* of the arguments that were made of parameters */
    enum tools_role role;      /* of the key that was read last */
    bool in_key, in_value;
    bool coded; /* the arguments are JSON in a string */
    bool has_args;
    char *name; /* owned; NULL: not known yet */
    bool started;
    char id[128];
    int32_t n_call; /* that were started */
    int32_t n_complete;
    int32_t n_param;
    bool value_is_text; /* of a parameter: a string */
    bool value_begun;
    bool value_inline;  /* it begins in the line of its tag */
    bool value_flushed; /* some of it was passed on */
    bool ending;        /* its closing tag has come, at ending_at; word: what stands behind that */
    size_t ending_at;
    bool loose;   /* some closing tag did not stand on a line of its own */
    bool lenient; /* which it need not, as no call came of it otherwise */
};

/* ---- bytes (tools.c) ---- */

void tools_append(struct serve_tools *t, struct tools_bytes *to, const char *text, size_t len);
void tools_drop(struct tools_bytes *b, size_t n); /* the first n */
bool tools_ends_with(const struct tools_bytes *b, const char *text);
/* Whether text begins with the bytes (they may be all of it). */
bool tools_is_prefix(const struct tools_bytes *b, const char *text);

/* ---- telling (tools.c) ---- */

void tools_tell(struct serve_tools *t, enum serve_tools_event_type type, const char *text,
                size_t len);
/* The call whose name is known begins; false: there is no such tool, which a bare object needs. */
bool tools_call_start(struct serve_tools *t);
void tools_call_args(struct serve_tools *t, const char *text, size_t len);
void tools_call_end(struct serve_tools *t, bool complete);

/* ---- calls: steps return false where c is no part of a call; tools.c calls tools_broken ---- */

bool tools_call_step(struct serve_tools *t, char c);   /* tools_call.c */
bool tools_object_step(struct serve_tools *t, char c); /* TOOLS_OBJECT */
bool tools_params_step(struct serve_tools *t, char c); /* tools_params.c */
/* A section begins with what is held. */
void tools_section_begin(struct serve_tools *t, const char *marker, bool bare);
/* The call of a name begins, whose arguments are made of parameters. */
bool tools_params_begin(struct serve_tools *t);
/* The name of the call is text[0..len), if it can be one. */
bool tools_call_named(struct serve_tools *t, const char *text, size_t len);
void tools_call_reset(struct serve_tools *t);
void tools_section_end(struct serve_tools *t);
/* Whether word may become a marker that ends the call behind which it stands. */
bool tools_call_closes(const struct serve_tools *t);
/* The text in raw was no call: all but word is content, word is read again. */
void tools_broken(struct serve_tools *t);

/* ---- the request's tools (tools_list.c) ---- */

/* The function of a tool in any of the APIs' forms, and the schema of its arguments or NULL. */
const json_t *tools_function(const json_t *tool);
const json_t *tools_function_schema(const json_t *function);
bool tools_knows(const struct serve_tools *t, const char *name);
/* Whether a parameter's value is a string, as far as its schema says. */
bool tools_param_is_text(const struct serve_tools *t, const char *name, const char *key);

/* ---- text (tools.c) ---- */

/* Takes c where text of a kind is awaited that one of markers [n] ends: tells what is certain.
   Returns the marker, or TOOLS_NO_MARKER, or TOOLS_TOLD where it told anything. With a marker
   held has white space (n_space) and the marker. keep_space: white space at the end waits for
   what follows. */
int tools_text_step(struct serve_tools *t, char c, const char *const *markers, int n,
                    enum serve_tools_event_type type, bool keep_space);
void tools_text_flush(struct serve_tools *t, enum serve_tools_event_type type);
/* ---- channels (tools_harmony.c) ---- */

void tools_harmony_step(struct serve_tools *t, char c);
void tools_harmony_finish(struct serve_tools *t, bool cut);
#endif
