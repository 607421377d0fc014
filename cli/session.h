/*
 * session.h - what most verbs begin with: the option groups of model, memory and sampling, and the
 * objects that they make. Everything here fails with a sentence, so a verb never sees half.
 */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H

#include "io.h"
#include "pith/grammar.h"
#include "pith/plan.h"
#include "options.h"

struct model_options {
    const char *path;    /* a file, or the name of a model that was pulled */
    const char *hf;      /* "USER/REPO[:QUANT]" of a hub; NULL: not given */
    const char *hf_file; /* of it */
    int32_t n_thread;
    const char *device;
    const char *gpu_layers; /* NULL: auto */
    const char *main_gpu;
    const char *tensor_split;
    const char *cpu_level;
    const char *cache_weights; /* as pith_model_params */
    const char *ranks;         /* how much each has; NULL: all as much */
    const char *split;         /* what each has; NULL: rows */
};

struct memory_options {
    const char *kv; /* "25%", "500MiB", "auto"; NULL: not given (budget.h) */
    int32_t n_ctx;  /* tokens; 0: not given */
    int64_t kv_bytes;
    int32_t chunk;
    const char *page_len; /* NULL: not given */
    const char *type_k;
    const char *type_v;
    const char *keep;
    const char *read;
    const char *recall;
    const char *share;
};

struct sample_options {
    pith_sample_params params; /* without seed and bias */
    int64_t seed;              /* -1: from the clock */
    struct option_texts bias;
};

struct grammar_options {
    const char *text;
    const char *file;
    const char *schema; /* JSON, or @FILE */
    const char *schema_file;
};

struct prompt_options {
    const char *text;
    const char *file;
    bool escape;
    bool parse_special;
    bool no_bos;
};

struct chat_options {
    const char *template_name;
    const char *template_file;
    const char *template_text; /* the file's, by chat_template_read */
    const char *system;
    const char *system_file;
    bool no_thinking;
};

extern const struct option model_option_table[];
extern const struct option memory_option_table[];
extern const struct option sample_option_table[];
extern const struct option grammar_option_table[];
extern const struct option prompt_option_table[];
extern const struct option chat_option_table[];

/* llama.cpp's options that have no field here (llama.c): the last group of every command that loads
   a model, with no struct of its own. */
extern const struct option llama_option_table[];
#define LLAMA_GROUP                                                                                \
    {                                                                                              \
        "Options of llama.cpp", llama_option_table, .note = LLAMA_NOTE                             \
    }
#define LLAMA_NOTE                                                                                 \
    "  -fa, --mlock, --no-mmap and others that change no answer are taken without effect,\n"       \
    "  which one line says. docs/from-llama.cpp.md lists them."

void memory_options_default(struct memory_options *o);
void sample_options_default(struct sample_options *o);

/* The library's params; the biases are parsed into *bias, which the caller frees after the last
   use. Fails (usage) for a bias that is no ID+VALUE. */
pith_sample_params sample_params(const struct sample_options *o, pith_logit_bias **bias);
/* Fails (usage) where a bias is of a token that the model does not have. */
void sample_check(const pith_sample_params *p, const pith_model *model);

/* The grammar that answers follow; NULL: none. The caller frees it after the last sampler. Fails
   for one that cannot be made. */
pith_grammar *load_grammar(const struct grammar_options *o, const pith_model *model);

/* The library's params; kv_tokens and memory_bytes as given, n_thread from the model's options.
   Fails (usage) for a --keep, --read, --recall or --share that cannot be read. */
pith_engine_params engine_params(const struct model_options *m, const struct memory_options *o);

/* The device that an engine takes; NULL: auto. */
const char *session_device(const struct model_options *m);
/* Fails (usage) where the options name no device. Of a list of devices the engine says it. */
void session_check_device(const struct model_options *m);
/* Whether some layers may be on a GPU, so that weights wait for the engine. */
bool session_uses_gpu(const struct model_options *m);
/* Sets where an engine's layers are. */
void session_place(const struct model_options *m, pith_engine_params *out);
/* Bytes of KV memory that an engine of the options takes unless it is told; 0: not known. */
int64_t session_room(const pith_model *model, const struct model_options *m);
/* Bytes of memory that the device of the options could give now; 0 when it does not say. */
int64_t available_memory(const struct model_options *m);
/* Bytes that this process has had read from disks so far; -1 when the system does not say. */
int64_t disk_bytes(void);

/* When a task of `pith eval` reads the full cache beside the measured one. */
enum session_pairs { PAIRS_NEVER, PAIRS_WITH_A_POLICY, PAIRS_ALWAYS };

struct session {
    char *path;           /* of the model's file; owned */
    pith_model *model;    /* owned */
    pith_engine *engine;  /* owned */
    pith_seq *seq;        /* owned */
    const char *drafting; /* --draft, set before: no default may forbid it; NULL: not given */
    bool quiet;           /* set before: what --kv chose is not printed */
    bool no_bar;          /* set before session_start: prompts are read without a word */
    int32_t n_ctx;        /* the longest text, set before session_load; 0: what the model knows */
    pith_model_info info;
    double load_s;
    int64_t disk_seen;         /* disk_bytes when the model was loaded, and then at each report */
    pith_engine_params params; /* of the engine; its strings are the options' */
    int32_t page_len;
    const char *keep;   /* as given; NULL: none */
    const char *read;   /* the same */
    const char *recall; /* the same */
    const char *share;  /* the same */
    bool told_context;  /* that texts are longer than the trained context */
    bool kv_limited;    /* the KV memory is smaller than the trained context for want of memory */
    pith_plan plan;     /* of --kv (budget.h) */
    char *stats;        /* the path of the model's own statistics; owned. NULL: not looked for, or
                           there are none */
    bool stats_are_bad; /* the file is there and cannot be used, which was said */
    char *keep_text;    /* --keep with that path; owned */
    char *read_text;    /* --read likewise */
    char *share_text;   /* --share with the model's threshold */
    int64_t kv_memory;  /* of --kv-memory or --kv, the drafting model's part included; 0: neither */
    int64_t draft_bytes; /* of them for the drafting model, as --kv divides; 0: not divided yet */
    int64_t swap_bytes;  /* --swap, set before budget_settle, which leaves what it comes to; below
                            0: not given */
    /* Answers at once take memory beside KV memory, which a size of --kv has. Set before
       budget_settle, which may leave fewer. */
    int32_t n_answer;                 /* answers that may run at the same time; 0: one */
    int32_t least_answer;             /* of them those that must; 0: one */
    const pith_sample_params *sample; /* of each; NULL: the default ones */
    int32_t draft_most;               /* most tokens of a draft, of draft_load; 0: none */
    int64_t
        least_pages; /* bytes of pages, set before session_start, which are needed at least where
                            no option sizes them */
    bool task;       /* of `pith eval`, which sizes its engines, set before budget_settle .. */
    enum session_pairs pairs; /* .. and whether it has one of the full cache beside */
    int64_t task_bytes; /* of KV memory for all of its engines, of a size of --kv; 0: as needed */
    const char *drafts; /* what --draft comes to, "auto" where it is lookup by itself; NULL: none */
    pith_draft_params draft;
    pith_model *draft_model;   /* owned; NULL: no model drafts */
    pith_engine *draft_engine; /* owned */
};

/* Selects the kernel level that --cpu-level names. */
void session_set_level(const struct model_options *o);

/* "cpu layers 0-7 (98 MiB), cuda:0 layers 8-35 and the output (4.1 GiB)" into buf. The engine is
   the session's, or one of the options. False: all are on the processor. */
bool session_stages(const struct session *s, char *buf, size_t cap);
bool session_stages_of(const pith_model *model, const struct model_options *m, char *buf,
                       size_t cap);

/* Selects the kernel level and loads the model, with a progress line on a terminal. */
void session_load(struct session *s, const struct model_options *o, bool vocab_only);
/* Makes the engine and an empty sequence. Without -c and --kv-memory the KV memory holds
   most_tokens tokens (0: the trained context) under the keep policy. It is at most half of the
   available memory. */
void session_start(struct session *s, const struct model_options *m, const struct memory_options *o,
                   int64_t most_tokens);
/* Says in one line, once, where texts of n_token tokens are longer than the trained context. */
void session_note_context(struct session *s, int64_t n_token);
/* Makes the engine anew, with so much memory for all that grows with its sequences. None but the
   session's own are there. */
void session_resize(struct session *s, int64_t memory_bytes);
void session_free(struct session *s);
/* Fails unless an evaluation succeeded; where it wants more KV memory, says how to give it. */
void session_check(pith_status status, const pith_error *err);

/* Seconds of a monotonic clock. */
double clock_s(void);

/* ---- tokens ---- */

struct cli_ids {
    int32_t *data; /* [n], freed by the caller */
    int32_t n;
};

struct cli_ids session_tokenize(const pith_model *model, const char *text, size_t len,
                                uint32_t flags);
/* The prompt of -p, -f or standard input, unescaped if asked. Fails (usage) when there is none or
   both are given. */
struct cli_text prompt_read(const struct prompt_options *o);
uint32_t prompt_flags(const struct prompt_options *o);
/* Ids as "1,2,3", separated by commas or white space, optionally within brackets. Fails (usage)
   naming what and the first thing that is no id of the model. */
struct cli_ids ids_parse(const char *what, const char *text, int32_t n_vocab);

/* Makes the text of --system-file the system message, where it is given. */
void chat_system_read(struct chat_options *o);

/* Reads --chat-template-file, where it is given: once, as it may be a pipe. */
void chat_template_read(struct chat_options *o);

/* The messages as a prompt that ends where the answer begins. */
pith_prompt *session_prompt(const pith_model *model, const struct chat_options *o,
                            const pith_message *messages, int32_t n);
/* Whether session_prompt would take them; *err says why not. */
bool session_try_messages(const pith_model *model, const struct chat_options *o,
                          const pith_message *messages, int32_t n, pith_error *err);
/* Tokens of a prompt; special ones are read in what the template wrote only. */
struct cli_ids session_prompt_ids(const pith_model *model, const pith_prompt *prompt, bool bos);

/* Fails where messages cannot become a prompt: --chat-template names none that comes along (usage),
   or the model has none and none is named. Also where a template of the user's is not understood.
   chat_template_read comes first. */
void session_check_template(const pith_model *model, const struct chat_options *o);
/* The second of them, of a text that an option gave: by a conversation of one message. */
void session_try_template(const pith_model *model, const char *option, const char *text);

/* ---- reports ---- */

/* Reports speeds, KV bytes, the work of policies and recall, and the hash of the last logits on
   standard error. It is for people, or one line of JSON. */
void session_report(struct session *s, const pith_generate_result *result, bool json);
/* Says on standard error why a text ended early, where the reason is the KV memory. */
void session_explain_full(const struct session *s);

#endif
