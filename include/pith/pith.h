/*
 * pith.h - models, engines, sequences and generation: what every program needs of Pith, a
 * language-model inference engine whose KV cache is a managed memory. Beside it policy.h lists the
 * policies of that memory, scheduler.h runs many requests, and calibrate.h gathers statistics that
 * policies need of a model. inspect.h looks inside, and grammar.h holds answers to a grammar or a
 * schema.
 *
 * Three nouns:
 *   pith_model   the weights and the tokenizer of one GGUF file. Immutable after load: any number
 *                of threads and engines may use one model at the same time.
 *   pith_engine  one KV memory budget, one set of worker threads and the scratch of a pass. One
 *                thread at a time may use an engine and the sequences that belong to it. Functions
 *                that change a sequence answer BUSY where another thread is in one. So do those
 *                that a callback of an evaluation calls.
 *   pith_seq     one timeline of tokens on the KV store of its engine.
 *
 * A first program (examples/simple.c holds the compiled text):
 *
 *     pith_model_load("model.gguf", NULL, &model, &err);
 *     pith_engine_create(model, NULL, &engine, &err);
 *     pith_seq_create(engine, &seq, &err);
 *     pith_generate(seq, ids, n_id, NULL, print_piece, NULL, NULL, &err);
 *
 * Conventions, true of every function unless its comment says otherwise:
 *   - a function that can fail returns a pith_status, PITH_OK (0) or a negative value, and fills
 *     *err when err is not NULL; err->message is one sentence that names the field and the value.
 *   - outputs are written only on success.
 *   - objects are made by _load or _create and released by _free, which accepts NULL. Models,
 *     engines, sequences and generations may be freed in any order.
 *   - params structs are filled by their _default function; NULL means all defaults.
 *   - strings are UTF-8; lengths and sizes are bytes; positions and counts of tokens are int32_t.
 *   - the library never prints, exits, reads the environment or keeps global state besides the
 *     kernel table (fixed at first use) and the log callback.
 */
#ifndef PITH_H
#define PITH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define PITH_API
#else
#define PITH_API __attribute__((visibility("default")))
#endif

/* ---- status ------------------------------------------------------------------------------- */

/* Name, value, sentence. The values never change once released. */
#define PITH_STATUS_MAP(XX)                                                                        \
    XX(OK, 0, "success")                                                                           \
    XX(INVALID, -1, "an argument or option is not valid")                                          \
    XX(NOMEM, -2, "memory could not be allocated")                                                 \
    XX(IO, -3, "a file could not be read or written")                                              \
    XX(FORMAT, -4, "a file is damaged or not of the expected format")                              \
    XX(UNSUPPORTED, -5, "this is known but not supported")                                         \
    XX(NOT_FOUND, -6, "no such thing")                                                             \
    XX(KV_FULL, -7, "the KV memory budget is exhausted")                                           \
    XX(CONTEXT, -8, "the position lies beyond what the model can address")                         \
    XX(RANGE, -9, "the caller's buffer is too small")                                              \
    XX(BUSY, -10, "the object is in use")                                                          \
    XX(CANCELLED, -11, "the operation was cancelled")                                              \
    XX(INTERNAL, -12, "an internal error")

typedef enum pith_status {
#define XX(name, value, text) PITH_##name = value,
    PITH_STATUS_MAP(XX)
#undef XX
} pith_status;

/* The reason of a failure, in the caller's storage. message is always terminated. */
typedef struct pith_error {
    pith_status status;
    char message[256];
} pith_error;

/* Returns the status' name ("KV_FULL"), a constant string; "UNKNOWN" for a value of no status. */
PITH_API const char *pith_status_name(pith_status status);

/* Returns the status' sentence, a constant string. */
PITH_API const char *pith_status_text(pith_status status);

/* Returns the library's version, "major.minor.patch", a constant string. */
PITH_API const char *pith_version(void);

/* ---- log ---------------------------------------------------------------------------------- */

typedef enum pith_log_level { PITH_LOG_DEBUG, PITH_LOG_INFO, PITH_LOG_WARN } pith_log_level;

/* Receives one line without newline, key=value, valid during the call only. */
typedef void pith_log_fn(void *user, pith_log_level level, const char *line);

/* Sets the process-wide log callback; NULL (the default) discards lines. Not thread-safe: call it
   before other functions. */
PITH_API void pith_log_set(pith_log_fn *fn, void *user);

/* ---- machine ------------------------------------------------------------------------------ */

/* Returns the name of the kernel level in use: "scalar", "avx2", "avx512", "amx" or "neon". */
PITH_API const char *pith_cpu_level(void);

/* Restricts the kernel table to a level ("scalar", "avx2", ...) for tests and comparisons; NULL
   chooses the best again. Not thread-safe; no pass may be running. INVALID for an unknown level,
   UNSUPPORTED for one that this processor lacks; the level in use is then unchanged. */
PITH_API pith_status pith_cpu_level_set(const char *level, pith_error *err);

/* ---- model -------------------------------------------------------------------------------- */

typedef struct pith_model pith_model;

/* Called while a long operation runs, fraction in [0,1]; return false to cancel it. */
typedef bool pith_progress_fn(void *user, double fraction);

typedef struct pith_model_params {
    bool vocab_only;            /* read metadata and tokenizer, no tensors (default false) */
    int32_t n_thread;           /* threads that prepare weights, 0 to 1024; 0: all processors
                                   (default) */
    pith_progress_fn *progress; /* may be NULL; called on the loading thread */
    void *progress_user;
    int32_t n_ctx; /* positions that texts will have at most; 0: the model's trained context
                      (default). Models with rotary factors for short and for long contexts
                      (longrope) use the factors of this length for every text. Nothing else looks
                      at it */
    const char *cache_weights; /* a folder where packed weights are kept between loads, in the file
                                  NAME.packed for a model NAME. "": the model's own folder. NULL
                                  (default): they are packed into memory by each load */
    bool on_demand; /* an engine packs the weights of its layers when it is made, each for the
                       layer's device alone. False (default): they are packed for the processor by
                       the load, and those that an engine then packs for a GPU are given back */
    uint32_t reserved[3];
} pith_model_params;

PITH_API void pith_model_params_default(pith_model_params *out);

/* Loads a GGUF file. Every size and offset in the file is checked before use. The weights are
   repacked once for the processor's kernels, so one copy of them is in memory. The rows of an
   embedding that is not the output matrix stay in the file, which must not change while the model
   is loaded. params may be NULL. With cache_weights the packed weights are a file's mapping.
   Processes share it, and the system may drop its pages and read them again, so a model may be
   larger than memory. A file that was not made from this model is made anew. Where that fails, a
   line of the log says why and the weights are packed into memory. IO, FORMAT (damaged file),
   UNSUPPORTED (architecture, tensor type or tokenizer that Pith does not run), NOMEM, CANCELLED. */
PITH_API pith_status pith_model_load(const char *path, const pith_model_params *params,
                                     pith_model **out, pith_error *err);

/* Lets the model go: its memory goes with the last engine over it. NULL is ignored. */
PITH_API void pith_model_free(pith_model *model);

/* The model's shape. Strings are owned by the model and live as long as it does. */
typedef struct pith_model_info {
    const char *name;         /* general.name, or "" */
    const char *architecture; /* general.architecture */
    const char *file_type;    /* the type most weight bytes are stored in, "Q4_K" */
    const char *tokenizer;    /* "bpe/qwen2", "spm", "none" */
    int64_t n_param;          /* weights in all tensors */
    int64_t file_bytes;
    int64_t weight_bytes; /* of all weights as the processor has them; 0 when vocab_only */
    int32_t n_layer;
    int32_t n_embd;
    int32_t n_ff;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t head_dim_k;
    int32_t head_dim_v;
    int32_t n_vocab;
    int32_t n_ctx_train; /* positions the model was trained for */
    int32_t n_rot;       /* rotated dimensions of a head */
    float rope_theta;
    bool runnable;       /* false for vocab_only loads: no engine can be made */
    int32_t n_layer_kv;  /* layers with attention; layers of lanes are numbered among them, those
                            with a window last */
    int32_t n_expert;    /* of a layer with experts; 0: the model has none */
    int64_t token_bytes; /* of weights that a generated token reads; 0 where the shape is unknown */
    int32_t n_expert_used; /* of them, by a token */
    int32_t n_ff_expert;   /* width of an expert */
    int32_t n_ff_shared;   /* width of the expert that takes every token; 0: there is none */
    bool weights_mapped;   /* the weights lie in a file (pith_model_params.cache_weights) */
    uint8_t reserved[3];
} pith_model_info;

PITH_API void pith_model_get_info(const pith_model *model, pith_model_info *out);

/* Copies text i of the model into buf, terminated where cap > 0, for callers who keep it longer
   than the model. *key, a constant string, says which it is: "name", "architecture", "file_type"
   (its quantization), "tokenizer", "template". *len gets its bytes; it and key may be NULL. RANGE
   when cap is too small, *len is then the bytes without the end; NOT_FOUND past the last. */
PITH_API pith_status pith_model_text(const pith_model *model, int32_t i, const char **key,
                                     char *buf, size_t cap, size_t *len);

/* ---- tokens ------------------------------------------------------------------------------- */

typedef enum pith_tokenize_flag {
    PITH_TOKENIZE_BOS = 1,     /* add BOS (and EOS) where the model's metadata asks for it */
    PITH_TOKENIZE_SPECIAL = 2, /* read the text of special tokens as those tokens */
} pith_tokenize_flag;

/* Tokenizes text of text_len bytes (any bytes; invalid UTF-8 is tokenized bytewise) into at most
   cap ids; *n_id receives the count. Where the model's tokenizer composes texts (Unicode's form
   NFC), so does this; bytes that have no token are left out. RANGE when cap is too small, *n_id is
   then the count needed (out may be NULL when cap is 0). UNSUPPORTED when the model has no
   tokenizer. Thread-safe. */
PITH_API pith_status pith_tokenize(const pith_model *model, const char *text, size_t text_len,
                                   uint32_t flags, int32_t *out, int32_t cap, int32_t *n_id,
                                   pith_error *err);

/* Writes the bytes of one token (they may be part of a character) and sets *len. special: also
   control tokens, which otherwise have no bytes. RANGE when cap is too small (*len is then the
   size needed), INVALID when id is no token. Thread-safe. */
PITH_API pith_status pith_token_bytes(const pith_model *model, int32_t id, bool special, char *out,
                                      size_t cap, size_t *len);

/* Detokenizes n_id ids to text: the bytes of the tokens one after the other, without the space that
   SentencePiece puts in front of a text. Not terminated. RANGE when cap is too small, *len is then
   the size needed. Thread-safe. */
PITH_API pith_status pith_detokenize(const pith_model *model, const int32_t *ids, int32_t n_id,
                                     bool special, char *out, size_t cap, size_t *len,
                                     pith_error *err);

/* Holds back the bytes of an unfinished character. Zero it before use. */
typedef struct pith_utf8_stream {
    uint8_t pending[4];
    uint8_t n_pending;
} pith_utf8_stream;

/* Appends len bytes (len <= cap - 4) and writes to out the whole characters that are complete;
   invalid bytes become U+FFFD. bytes NULL flushes what is pending. Returns the bytes written;
   cap must be at least 3 * (len + 4). */
PITH_API size_t pith_utf8_push(pith_utf8_stream *stream, const char *bytes, size_t len, char *out,
                               size_t cap);

/* True for tokens that end a generation (EOS, EOT, end of message...). */
PITH_API bool pith_token_is_end(const pith_model *model, int32_t id);

/* The ids of BOS and EOS, -1 where the model has none. */
PITH_API int32_t pith_token_bos(const pith_model *model);
PITH_API int32_t pith_token_eos(const pith_model *model);

/* The tokens that stand around a gap in a text (fill in the middle). They mark the text before the
   gap, the text behind it, and where the gap's text begins. Two more stand before the name of a
   repository and before the name of another file. */
typedef struct pith_gap_tokens {
    int32_t prefix, suffix, middle, repo, file; /* -1: the model has none */
} pith_gap_tokens;

/* The tokens that the model's file names (tokenizer.ggml.fim_pre_token_id and its like). Where it
   names none, they are found by the names that published models use. False where prefix, suffix or
   middle is missing. */
PITH_API bool pith_model_gap_tokens(const pith_model *model, pith_gap_tokens *out);

/* ---- chat --------------------------------------------------------------------------------- */

typedef struct pith_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} pith_message;

typedef enum pith_chat_flag {
    PITH_CHAT_GENERATE = 1,    /* end with the opening of the assistant's answer */
    PITH_CHAT_NO_THINKING = 2, /* thinking models answer at once: the template is told so; where it
                                  has no switch, an empty block of thoughts opens the answer */
} pith_chat_flag;

/* Returns the Jinja text of the model's own chat template, owned by the model; NULL when the file
   has none. */
PITH_API const char *pith_chat_template(const pith_model *model);

/* Returns the name of template i of those that come along ("chatml", "llama3", "qwen3", ...), NULL
   past the last. They are for models whose files have none. */
PITH_API const char *pith_chat_template_name(int32_t i);

/* A rendered conversation: text, and of each part whether a user wrote it. Immutable. */
typedef struct pith_prompt pith_prompt;

typedef struct pith_chat_params {
    const char *template_name;    /* one that comes along; NULL (default): the next */
    const char *template_text;    /* a Jinja template; NULL (default): the model's own */
    const pith_message *messages; /* [n_message] of plain text; contents are a user's */
    int32_t n_message;
    const char *json; /* instead of messages, JSON as chat clients send it: an object with the array
                         "messages". As the template knows them, it also has "tools", "documents",
                         "enable_thinking"...: each key is a variable of the template */
    size_t json_len;
    uint32_t flags;      /* PITH_CHAT_ values */
    int64_t now;         /* the time of a template's clock, in seconds since 1970 in the user's time
                       zone. 0 (default): it has none. A template that insists is told 26 July 2024,
                       so that the same messages are the same prompt on any day */
    const char *opening; /* [opening_len] what the answer begins with, a user's text behind the
                            opening of the answer; NULL (default): nothing */
    size_t opening_len;
    uint32_t reserved[4];
} pith_chat_params;

PITH_API void pith_chat_params_default(pith_chat_params *out);

/* Renders a conversation. params is needed during the call only. A BOS that the template starts
   with is left out where PITH_TOKENIZE_BOS adds one. INVALID: the conversation is not well-formed,
   or the template refuses it (the message is then the template's own). Also where it takes too much
   (steps, depth, bytes: docs/templates.md). UNSUPPORTED: the model has no template, or one that is
   not understood. NOMEM. Thread-safe. */
PITH_API pith_status pith_prompt_create(const pith_model *model, const pith_chat_params *params,
                                        pith_prompt **out, pith_error *err);

/* Frees a prompt. NULL is ignored. */
PITH_API void pith_prompt_free(pith_prompt *prompt);

/* Returns the text, terminated, owned by the prompt; *len (may be NULL) receives its bytes. */
PITH_API const char *pith_prompt_text(const pith_prompt *prompt, size_t *len);

/* Piece i: *from and *len receive its place in the text, *from_user whether a user wrote it.
   Neighbours differ in that. False past the last. */
PITH_API bool pith_prompt_piece(const pith_prompt *prompt, int32_t i, size_t *from, size_t *len,
                                bool *from_user);

/* Tokenizes the prompt as pith_tokenize does the whole text, but for special tokens (with
   PITH_TOKENIZE_SPECIAL). These are read in the template's own text. In a user's text their names
   are plain text. (Tokens that a vocabulary calls user-defined are read everywhere.) model is the
   one that the prompt was made with. */
PITH_API pith_status pith_prompt_tokenize(const pith_model *model, const pith_prompt *prompt,
                                          uint32_t flags, int32_t *out, int32_t cap, int32_t *n_id,
                                          pith_error *err);

/* Renders messages to text alone, as pith_prompt_create; template_name NULL means the model's own.
   Tokenized with PITH_TOKENIZE_BOS and PITH_TOKENIZE_SPECIAL it gives the model's prompt, but what
   users typed can then be special tokens. Not terminated; *len receives the bytes. RANGE when cap
   is too small, *len is then the size needed. Thread-safe. */
PITH_API pith_status pith_chat_render(const pith_model *model, const char *template_name,
                                      const pith_message *messages, int32_t n_message,
                                      uint32_t flags, char *out, size_t cap, size_t *len,
                                      pith_error *err);

/* ---- devices ------------------------------------------------------------------------------ */

/* Where engines keep weights and pages, and where they compute. */
typedef struct pith_device_info {
    const char *name;      /* "cpu", as pith_engine_params.device takes it; constant */
    char description[128]; /* one line for people */
    int64_t total_bytes;   /* its memory; -1: not known */
    int64_t free_bytes;    /* that it could give now; -1: not known */
    int64_t used_bytes;    /* that this process has taken of it for models and engines: weights,
                              pages as far as they are reserved, buffers of passes */
    int64_t pinned_bytes;  /* of the processor's memory, pinned for sequences that are swapped */
    uint32_t reserved[6];
} pith_device_info;

/* Devices of this process, at least 1: this machine's processor, then its GPUs. */
PITH_API int32_t pith_device_count(void);

/* Device i; the first is the processor. A GPU that no engine uses is not opened: what is free of
   its memory is not known then. NOT_FOUND past the last. */
PITH_API pith_status pith_device_get(int32_t i, pith_device_info *out);

/* The device that a name means, as an engine takes it; NULL and "auto": the first GPU that can be
   used, else the processor. It is opened. out may be NULL. INVALID: there is no such device.
   UNSUPPORTED says why a GPU cannot be used. */
PITH_API pith_status pith_device_find(const char *name, pith_device_info *out, pith_error *err);

/* ---- engine ------------------------------------------------------------------------------- */

/* Threads: the one that calls a function computes, and helpers of the library take part. All
   callers of a process share the helpers. Their number never exceeds the processors that the
   process may use, by its mask and by the limits of its control groups. n_thread above that changes
   nothing. Helpers are made when first wanted, take no signals, sleep when idle, and end at exit or
   when the library is unloaded. A child of fork makes its own. */

typedef struct pith_engine pith_engine;

/* Tells how far an evaluation is, several times in each of its passes: n_read of its n_token
   tokens. Of the running pass as many tokens count as layers of it are done, in proportion. Return
   false to end the evaluation at once, within the pass where there is a way back to before it:
   CANCELLED, as pith_batch_eval says. It must not change the engine or its sequences. */
typedef bool pith_advance_fn(void *user, int64_t n_read, int64_t n_token);

/* One lane (layer and KV head) at a round of the caller's own keep policy. Pointers are valid
   during the call. */
typedef struct pith_keep_lane {
    int32_t layer; /* among the layers with lanes */
    int32_t head;  /* KV head */
    int32_t n;     /* entries */
    int32_t n_token;
    int32_t n_prompt; /* the first positions, marked as the prompt; 0: none are */
    int32_t dim_k;
    int32_t dim_v;
    const int32_t *pos;    /* [n] */
    const bool *evictable; /* [n] the others stay, whatever they score */
    const int32_t *tokens; /* [n_token] of the sequence */
    const float *k;        /* [n][dim_k] as attention sees them */
    const float *v;        /* [n][dim_v] */
    /* [n] with the option queries=N: the mean weight of each entry, over the last N queries of all
       the head's query heads. NULL without. */
    const float *attention;
    /* [n_query][n_group][dim_k] likewise: these queries after rotation, not yet scaled, the last
       token's last. There are fewer than N at the beginning of a text. */
    const float *q;
    int32_t n_query;
    int32_t n_group;  /* query heads of a KV head */
    float attn_scale; /* logit = attn_scale * q . k */
    int32_t n_mark;
    /* [n] with sums=on: the weight that all queries since the entry was written gave it, the mean
       of the head's query heads. NULL without. */
    const float *sum;
    const float *mark; /* [n][n_mark] what keep_mark wrote; NULL where there is none */
    uint32_t reserved[8];
} pith_keep_lane;

/* A keep policy of the caller: score [n], how much each entry deserves to stay, never NaN. All the
   rest is by the rules that every keep policy has. Called on the thread that evaluates, lane after
   lane. It must not call the engine or its sequences. Return false to stop: the round ends with
   scores of 0, and the evaluation fails as CANCELLED. The tokens of its passes stay. */
typedef bool pith_keep_score_fn(void *user, const pith_keep_lane *lane, float *score);

/* The new entries of one lane, as a pass has them. Pointers are valid during the call. */
typedef struct pith_keep_new {
    int32_t layer;
    int32_t head;
    int32_t n;    /* entries */
    int32_t pos0; /* position of the first; the others follow one by one */
    int32_t n_embd;
    int32_t dim_k;
    int32_t dim_v;
    int32_t n_mark;
    const int32_t *tokens; /* [n] */
    const float *h;        /* [n][n_embd] the layer's input after its norm */
    const float *k;        /* key i, before rotation, at k + i * k_stride */
    const float *v;        /* value i at v + i * v_stride */
    size_t k_stride;       /* floats */
    size_t v_stride;
    uint32_t reserved[8];
} pith_keep_new;

/* Writes mark [n][n_mark]: numbers that stay beside the entries until they are evicted, for the
   caller's pith_keep_score_fn. An entry's numbers must not depend on the other entries. Called and
   stopped as that function, but that a stopped evaluation is taken back. */
typedef bool pith_keep_mark_fn(void *user, const pith_keep_new *entries, float *mark);

/* A chunk of a prompt, or one token, in the lane of a KV head, for a read policy of the caller.
   Pointers are valid during the call. */
typedef struct pith_read_chunk {
    int32_t layer; /* among the layers with lanes */
    int32_t head;  /* KV head */
    int32_t n;     /* stored entries of earlier tokens */
    int32_t n_token;
    int32_t pos0; /* position of the chunk's first token */
    int32_t n_group;
    int32_t dim_k;
    int32_t dim_v;
    int32_t n_choose;   /* entries that are chosen by score, beside those that are always read */
    float attn_scale;   /* logit = attn_scale * q . k */
    const int32_t *pos; /* [n] */
    const float *q;     /* [n_token][n_group][dim_k] after rotation, not yet scaled */
    const float *k;     /* [n][dim_k] as attention sees them */
    const float *v;     /* [n][dim_v] with the option values=on; NULL without */
    uint32_t reserved[8];
} pith_read_chunk;

/* A read policy of the caller: score [n], how much each entry deserves to be read. NaN counts as
   lowest. The rules that every read policy has (budget, sinks, recent, ...) do the rest. It is not
   asked where they read a lane whole. Called on the thread that evaluates: layers ascend, lanes of
   a layer come in any order. It must not call the engine or its sequences. Return false to stop:
   the evaluation fails as CANCELLED and is taken back. */
typedef bool pith_read_score_fn(void *user, const pith_read_chunk *chunk, float *score);

typedef struct pith_engine_params {
    int32_t n_thread;   /* 0: all processors (default) */
    int64_t kv_bytes;   /* KV memory budget in bytes; 0: from kv_tokens */
    int32_t kv_tokens;  /* KV memory budget in tokens; 0 (default): the model's trained context, on
                           a GPU as much of it as fits */
    int32_t page_len;   /* entries of a page: 16, 32 or 64; 0 (default): 64, and 16 where `share`
                           compares pages or `read` scores them as a whole (quest) */
    int32_t chunk;      /* most tokens of one pass (default 512) */
    const char *type_k; /* "f32", "f16" (default), "bf16", "q8_0", "q4_0", "turbo4", "turbo3" or
                           "turbo2"; with other types in the first and last layers as
                           "turbo2:q8_0=2+2". "q8_0:centre" takes off the part that a lane's keys
                           have in common. It goes with neither policies nor pith_seq_save.
                           docs/store.md describes them */
    const char *type_v; /* the same, without centre */
    const char *keep;   /* which entries stay: "NAME:key=value,..."; NULL (default) or "none": all.
                           With a policy and neither kv_bytes nor kv_tokens, the KV memory is what
                           one sequence of the trained context takes under it */
    const char *read;   /* which entries attention looks at: "NAME:key=value,..."; NULL (default) or
                           "none": all that are stored */
    const char *recall; /* how evicted tokens come back: "kv:key=value,..." or "text:..."; NULL
                           (default) or "none": they do not. docs/recall.md describes both */
    const char *share;  /* which pages of generated tokens may stand for others:
                           "NAME:key=value,..."; NULL (default) or "none": none */
    pith_advance_fn *on_advance; /* called on the evaluating thread for each evaluation that has
                                    more tokens than sequences; NULL (default): not called */
    void *advance_user;
    pith_progress_fn *progress; /* on the creating thread, while weights are packed for devices that
                                   do not have them; NULL (default): not called */
    void *progress_user;
    int64_t memory_bytes; /* budget in bytes of all that grows with conversations: pages, recall's
                             tier, tables, marks and what policies remember. Pages and the tier get
                             their parts of it as one long conversation would fill them. A
                             scheduler takes of the pages what other parts come to need. 0
                             (default): kv_bytes or kv_tokens size the pages, the rest comes on top.
                             With one of these it is INVALID */
    const char *device;   /* where it computes and has its pages: a name of pith_device_get, or
                             several GPUs as "cuda:0,cuda:1". NULL (default) or "auto": the first
                             GPU that can be used, else the processor */
    int32_t n_gpu_layers; /* the number of layers on the GPU, the last ones, with their pages. The
                             others are on the processor. One more than there are: the output is
                             there, too. PITH_GPU_LAYERS_NONE, PITH_GPU_LAYERS_ALL. 0 (default): as
                             many as fit beside the KV memory. Without a GPU it says nothing */
    const char *tensor_split; /* of several GPUs each one's share of these layers, as "3,1"; NULL
                                 (default): as their free memory */
    /* Scores of the keep policy "custom". Its options are the rules of all policies, queries=N,
       sums=on and marks=N. NULL (default): there is none. A file (pith_seq_save) has the entries of
       such a sequence, and nothing that was noted for the function. */
    pith_keep_score_fn *keep_score;
    void *keep_user;
    pith_keep_mark_fn *keep_mark; /* with keep_score, marks=N numbers of each new entry, 1 where the
                                     option is not given; NULL (default): there are none */
    /* Scores of the read policy "custom". Its options are the rules of all policies, and values=on.
       NULL (default): there is none. */
    pith_read_score_fn *read_score;
    void *read_user;
} pith_engine_params;

#define PITH_GPU_LAYERS_NONE (-1)
#define PITH_GPU_LAYERS_ALL INT32_MAX

PITH_API void pith_engine_params_default(pith_engine_params *out);

/* Makes an engine over model, which it holds until it is freed. The KV pool is reserved here,
   never grown. The strings of params are not needed afterwards. INVALID: a value out of range, a
   policy or option that there is not, or policies that do not go together. Also a budget below
   the entries that are protected. IO: recall's file. UNSUPPORTED: a storage type that does not
   fit the head size, a vocab_only model, or a share policy for a model without tokenizer. NOMEM. */
PITH_API pith_status pith_engine_create(const pith_model *model, const pith_engine_params *params,
                                        pith_engine **out, pith_error *err);

/* Lets the engine go: its memory goes with the last of its sequences and schedulers. NULL is
   ignored. */
PITH_API void pith_engine_free(pith_engine *engine);

/* The model that the engine was made over. */
PITH_API const pith_model *pith_engine_model(const pith_engine *engine);

/* The name of its device, the first GPU where it has some; a constant string. */
PITH_API const char *pith_engine_device(const pith_engine *engine);

/* A stretch of the model's layers on one device. */
typedef struct pith_stage_info {
    const char *device; /* its name, constant */
    int32_t first_layer;
    int32_t n_layer; /* may be 0: the output alone */
    bool output;     /* the output matrix is there: of the last stretch */
    int64_t weight_bytes;
    int64_t page_bytes; /* of pages in use on the device, all its stretches together */
    uint32_t reserved[8];
} pith_stage_info;

/* Stretch i, in the order in which a pass goes over them. NOT_FOUND past the last. */
PITH_API pith_status pith_engine_stage(const pith_engine *engine, int32_t i, pith_stage_info *out);

/* The same as an engine with these params would have it, without pages. A vocab_only model will do.
   NOT_FOUND, and the statuses of pith_engine_create. */
PITH_API pith_status pith_stage_plan(const pith_model *model, const pith_engine_params *params,
                                     int32_t i, pith_stage_info *out, pith_error *err);

/* Bytes of pages that an engine of these params should take at most, whatever budget they have. On
   the processor it is half of the free memory, on GPUs as many as fit beside the weights. 0: it is
   not known. The statuses of pith_engine_create. */
PITH_API pith_status pith_kv_room(const pith_model *model, const pith_engine_params *params,
                                  int64_t *bytes, pith_error *err);

/* Bytes of KV memory that n_token tokens of one sequence take with these params, for planning
   before anything is allocated. They count whole pages, and with a keep policy the most pages that
   are held on the way. Recall's guests are in them, stretches that a share policy keeps apart, and
   the state of recurrent layers, which 0 tokens take, too. INVALID, UNSUPPORTED. */
PITH_API pith_status pith_kv_estimate(const pith_model *model, const pith_engine_params *params,
                                      int64_t n_token, int64_t *bytes, pith_error *err);

/* The same with all that comes beside pages. With memory_bytes of at least that, nothing of n_token
   tokens of one sequence is lost. INVALID, UNSUPPORTED. */
PITH_API pith_status pith_memory_estimate(const pith_model *model, const pith_engine_params *params,
                                          int64_t n_token, int64_t *bytes, pith_error *err);

/* Exact account of the KV memory, in bytes of pages. used <= reserved after every call. */
typedef struct pith_kv_stats {
    int64_t reserved_bytes; /* the budget: bytes of the whole pool */
    int64_t used_bytes;     /* pages in use */
    int64_t peak_bytes;     /* most pages ever in use */
    int64_t live_bytes;     /* of used: key, value, scales and position of each entry that some lane
                               sees, once per page; the rest is slots without entry and alignment */
    int64_t shared_bytes;   /* of used: pages that more than one page table entry points to */
    int64_t saved_bytes;    /* what they would cost more if each entry had a page of its own */
    int64_t table_bytes;    /* page tables, lane heads, the pool's lists and the state that a keep
                               policy has of sequences, beside the pool */
    int64_t page_bytes;     /* one page; with different types in some layers, the largest */
    int64_t n_page;         /* in use, and of that size as many as there is room for */
    int64_t n_page_used;
    int32_t n_seq;
    int32_t page_len;    /* entries of a page */
    int64_t whole_bytes; /* reserved_bytes of all ranks together (ranks.h) */
    uint32_t reserved[4];
} pith_kv_stats;

PITH_API void pith_engine_kv_stats(const pith_engine *engine, pith_kv_stats *out);

/* The pages and states on one device. There is one budget for all of them. used_bytes of all sums
   to that of pith_kv_stats, idle_bytes to that of pith_memory_stats. */
typedef struct pith_kv_device {
    const char *device; /* its name, constant */
    int64_t most_bytes; /* that can be in use there: the budget, or less on a GPU */
    int64_t used_bytes;
    int64_t peak_bytes; /* most ever in use there */
    int64_t idle_bytes; /* free pages that were used, and whose memory waits for the next ones */
    uint32_t reserved[8];
} pith_kv_device;

/* The i-th device that has pages. NOT_FOUND past the last. */
PITH_API pith_status pith_engine_kv_device(const pith_engine *engine, int32_t i,
                                           pith_kv_device *out);

/* Where the memory goes that grows with conversations: parts in bytes, which sum to total_bytes.
   Memory that an engine takes once (weights, buffers of a pass) is in none of them. */
typedef struct pith_memory_stats {
    int64_t budget_bytes; /* pith_engine_params.memory_bytes; 0: only pages and the tier have one */
    int64_t total_bytes;  /* KV memory, which budgets bound */
    int64_t lane_bytes;   /* pages of sequences, each counted once, and those that prefixes hold */
    int64_t guest_bytes;  /* pages of entries that recall has brought back */
    int64_t state_bytes;  /* of recurrent layers */
    int64_t idle_bytes;   /* free pages that were used: the next ones are taken of them */
    int64_t tier_bytes;   /* what recall `kv` keeps of evicted entries in memory */
    int64_t tier_device_bytes; /* of them on GPUs. Other pages of GPU layers are pinned */
    int64_t text_bytes;        /* what recall `text` keeps in memory */
    int64_t aside_bytes;       /* sequences that a scheduler has put into host memory, with what
                                  they have beside pages. It is not within budget_bytes */
    int64_t table_bytes; /* page tables, lists of pages and of tokens, what finds evicted entries */
    int64_t mark_bytes;  /* floats beside entries that a keep policy asked for */
    int64_t policy_bytes; /* what policies and recall remember of each sequence */
    int64_t draft_bytes;  /* what drafts are looked up in; a drafting model's engine has its own.
                             Not in total_bytes */
    int64_t work_bytes;   /* buffers of rounds and recalls, as long as lanes are */
    int64_t file_bytes;   /* of recall's file: on disk, not in total_bytes */
    int64_t logits_bytes; /* the sequences' rows of logits; not in total_bytes */
    uint32_t reserved[6];
} pith_memory_stats;

/* Takes O(pages) time. */
PITH_API void pith_engine_memory_stats(const pith_engine *engine, pith_memory_stats *out);

/* From now on peak_bytes counts from what is in use at this moment. */
PITH_API void pith_engine_kv_reset_peak(pith_engine *engine);

/* ---- sequences ---------------------------------------------------------------------------- */

typedef struct pith_seq pith_seq;

/* Makes an empty sequence. NOMEM. */
PITH_API pith_status pith_seq_create(pith_engine *engine, pith_seq **out, pith_error *err);

/* Frees the sequence and returns its pages. Any thread may call it: while another one is in a call
   of the engine, the pages come back when that ends. NULL is ignored. */
PITH_API void pith_seq_free(pith_seq *seq);

/* Makes a copy that shares every page; pages are copied when one side writes to them. The copy has
   the row of logits, too. NOMEM. */
PITH_API pith_status pith_seq_fork(const pith_seq *seq, pith_seq **out, pith_error *err);

/* Forgets all tokens at positions >= n_token and gives their pages back. Entries that a keep policy
   has evicted below n_token stay away. So the sequence may then remember less than one that was
   evaluated to n_token, and pith_seq_sync does not build on such a rest. Recall forgets what is at
   or above n_token, too, and its guests where the tokens that chose them go. INVALID when n_token
   is negative or beyond the sequence. KV_FULL when a policy overwrote entries in pages that a fork
   shares, and none is free to copy one to. UNSUPPORTED where layers with a window no longer hold
   the entries that a token at n_token would see. Likewise where recurrent layers keep no state of
   n_token tokens. The sentence says how far back it can go. The sequence is then unchanged. */
PITH_API pith_status pith_seq_truncate(pith_seq *seq, int32_t n_token, pith_error *err);

/* Says that the first n_token positions are the prompt, whose entries a keep policy with the option
   pin-prompt never evicts; 0 takes it back. pith_generate marks the first prompt that it reads, or
   one that it reads in the place of that. Forgetting a part of the prompt takes the mark back. A
   fork keeps it, and so does a file for an engine with the same policy that pins. Mark before the
   positions are evaluated: what was evicted stays away. INVALID when n_token is negative, or when
   the policy's budget does not hold that number of pinned entries, with the numbers. */
PITH_API pith_status pith_seq_mark_prompt(pith_seq *seq, int32_t n_token, pith_error *err);

/* Gives a sequence without tokens a budget of its own, in the unit of the engine's keep policy.
   That is "256" entries of a lane or "25%" of the tokens. "none": nothing is evicted, and the
   sequence computes what that of an engine without the policy does. NULL: the engine's. A fork has
   it, too; a file does not. More memory than the engine has is refused when the tokens come, as
   always. INVALID: the text, the unit (a size such as 64MiB is never a sequence's own), or a budget
   that the policy cannot work with. Also a sequence that has tokens. UNSUPPORTED: with a share
   policy. */
PITH_API pith_status pith_seq_set_budget(pith_seq *seq, const char *budget, pith_error *err);

/* The engine that the sequence belongs to. */
PITH_API pith_engine *pith_seq_engine(const pith_seq *seq);

/* Tokens so far; the next one gets this position. */
PITH_API int32_t pith_seq_length(const pith_seq *seq);

/* The tokens so far, [length], valid until the sequence changes. */
PITH_API const int32_t *pith_seq_tokens(const pith_seq *seq);

/* The logits of the last evaluated token that asked for them, [n_vocab], valid until the sequence
   changes; NULL when there are none. */
PITH_API const float *pith_seq_logits(const pith_seq *seq);

/* Writes the sequence to a versioned, checksummed file: tokens, positions, pages as stored, and the
   keep policy's state. The file appears whole or not at all. IO, NOMEM. */
PITH_API pith_status pith_seq_save(const pith_seq *seq, const char *path, pith_error *err);

/* Reads such a file into a new sequence. Where the keep policy and all its options are the same, it
   goes on as the saved one would have, bit for bit. The engine must have the same model shape, page
   length and storage types; its keep policy may be another. Then the saved policy's state is left
   out, and the engine's policy begins with entries that it has not seen before. A lane that holds
   budget + slack entries or more has its round at the beginning of the next evaluation. Recall's
   entries and texts are not in the file: nothing that was evicted before comes back. Its read
   policy may be another, too; that tokens read a part is in their entries and not said in the file.
   IO, FORMAT (damaged), UNSUPPORTED (a later version of the format), INVALID (other model or types,
   named with both values), KV_FULL, NOMEM; nothing has changed then.
 */
PITH_API pith_status pith_seq_load(pith_engine *engine, const char *path, pith_seq **out,
                                   pith_error *err);

/* ---- evaluation --------------------------------------------------------------------------- */

typedef enum pith_logits_mode {
    PITH_LOGITS_LAST, /* of the item's last token, read by pith_seq_logits */
    PITH_LOGITS_NONE,
    PITH_LOGITS_ALL, /* of every token, handed to the item's callback */
} pith_logits_mode;

/* Called with the logits of one position, [n_vocab], valid during the call. It must not change the
   engine or its sequences. Return false to stop. */
typedef bool pith_logits_fn(void *user, pith_seq *seq, int32_t pos, const float *logits);

/* Work for one sequence: tokens to append. */
typedef struct pith_batch_item {
    pith_seq *seq;
    const int32_t *tokens; /* [n_token] */
    int32_t n_token;
    pith_logits_mode logits;
    pith_logits_fn *on_logits; /* for PITH_LOGITS_ALL */
    void *user;
    int32_t n_rest; /* tokens of a prompt that is read in parts which follow in later calls; recall
                       of entries waits for its end. 0: the item is whole, or the last part */
    const int32_t *targets; /* [n_token] for PITH_LOGITS_ALL in the place of on_logits: the token
                               whose probability behind each is wanted, -1: none is. No row of
                               logits is made where none is wanted, and none is handed out */
    double *logprob;        /* [n_token] receives their pith_logits_logprob; others are left */
    bool *best;             /* [n_token] likewise whether no token is likelier; may be NULL */
} pith_batch_item;

/* Appends the tokens of every item (distinct sequences of this engine) in passes of at most `chunk`
   tokens. Results do not depend on the company in the batch, the chunk or the threads. On failure
   every sequence of the batch is as it was before the call, but for two cases. Where a keep policy
   had evicted entries in this call, only CANCELLED can follow. Then the sequence holds the tokens
   of the passes that were done, without logits. Where recall had chosen guests in this call and
   nothing was evicted, it has none. With a keep policy the memory for at most budget + slack
   entries per lane must be free, however many tokens follow. Rounds over pages that are shared with
   a fork may copy them. INVALID (token id out of range, a sequence twice), KV_FULL, CONTEXT,
   CANCELLED (progress, on_logits or the engine's on_advance returned false), NOMEM. */
PITH_API pith_status pith_batch_eval(pith_engine *engine, const pith_batch_item *items,
                                     int32_t n_item, pith_progress_fn *progress, void *user,
                                     pith_error *err);

/* pith_batch_eval of one sequence, logits of the last token. */
PITH_API pith_status pith_seq_eval(pith_seq *seq, const int32_t *tokens, int32_t n_token,
                                   pith_error *err);

/* Makes the sequence hold exactly these tokens: keeps the common prefix, truncates, and evaluates
   only the rest. That is at least the last token, so that logits are there. The result is that of a
   fresh sequence. Where truncating would leave gaps of evicted entries, only the tokens before the
   first gap are kept. With a read policy only tokens that no evaluation reads in part are kept.
   With a share policy only the tokens before the first shared one are. A model with recurrent
   layers keeps those up to a state that was kept. As pith_batch_eval. */
PITH_API pith_status pith_seq_sync(pith_seq *seq, const int32_t *tokens, int32_t n_token,
                                   pith_progress_fn *progress, void *user, pith_error *err);

/* The model's vector for a text, out [n_embd], of length 1, from the hidden states after the last
   norm. It is the last token's, the first's or the mean, as the file's key ARCH.pooling_type says
   (3, 2, 1). Without the key it is the last token's. The tokens are read in a sequence of their
   own, which must fit in the engine and is gone afterwards. The caller adds the tokens that the
   model wants around a text (PITH_TOKENIZE_BOS). The same bits for any chunk and number of threads.
   INVALID: no tokens, an id out of range, or an engine with a keep or read policy. UNSUPPORTED:
   another pooling, or a model whose tokens see those behind them. FORMAT: such a key of another
   type. CANCELLED: the tap returned false. CONTEXT, KV_FULL, NOMEM. */
PITH_API pith_status pith_embed(pith_engine *engine, const int32_t *tokens, int32_t n_token,
                                float *out, pith_error *err);

/* ---- sampling ----------------------------------------------------------------------------- */

typedef struct pith_sampler pith_sampler;

typedef struct pith_logit_bias {
    int32_t token;
    float bias;
} pith_logit_bias;

/* The steps of a choice, in this order (llama.cpp's): bias, penalties, top-k, top-p, min-p,
   temperature, draw. top-p and min-p therefore judge probabilities at temperature 1, top-p among
   the top_k. The penalties of a token that occurs c > 0 times among the last penalty_last_n:
   logit = logit > 0 ? logit / repeat : logit * repeat, then logit -= c * frequency + presence. */
typedef struct pith_sample_params {
    float temperature;           /* 0: greedy. Default 0.8 */
    int32_t top_k;               /* 0: off. Default 40 */
    float top_p;                 /* 1: off. Default 0.95 */
    float min_p;                 /* 0: off. Default 0.05 */
    float repeat_penalty;        /* 1: off (default) */
    float presence_penalty;      /* 0: off (default) */
    float frequency_penalty;     /* 0: off (default) */
    int32_t penalty_last_n;      /* tokens looked back at; 0: none, -1: all. Default 64 */
    uint64_t seed;               /* default 0; the same seed gives the same tokens */
    const pith_logit_bias *bias; /* [n_bias] added to logits, copied; -INFINITY bans a token */
    int32_t n_bias;
    const struct pith_grammar *grammar; /* NULL (default): none; else it must outlive the sampler
                                           (grammar.h). Tokens that it forbids are never chosen */
    uint32_t reserved[6];
} pith_sample_params;

PITH_API void pith_sample_params_default(pith_sample_params *out);

/* Makes a sampler for n_vocab tokens. INVALID (a parameter out of range, named), NOMEM. */
PITH_API pith_status pith_sampler_create(const pith_sample_params *params, int32_t n_vocab,
                                         pith_sampler **out, pith_error *err);
PITH_API void pith_sampler_free(pith_sampler *sampler);

/* Chooses a token from logits [n_vocab]; ties go to the lower id. -1: the grammar allows none. */
PITH_API int32_t pith_sampler_sample(pith_sampler *sampler, const float *logits);

/* Tells the sampler of a token that was taken, prompt or generated, for the penalties. Tokens
   behind the first call of pith_sampler_sample are the answer, which the grammar follows. */
PITH_API void pith_sampler_accept(pith_sampler *sampler, int32_t token);

/* A token, and how likely it was to be drawn. */
typedef struct pith_chance {
    int32_t token;
    float p; /* above 0, up to 1 */
} pith_chance;

/* The chance of a token in the distribution that the last choice was drawn from: 0 for a token that
   could not be drawn. A greedy choice, and a token that was accepted without a choice, had the
   chance 1. */
PITH_API float pith_sampler_chance(const pith_sampler *sampler, int32_t token);
/* The likeliest of those tokens, best first, of equals the lower id. Returns how many of at most
   cap were written. */
PITH_API int32_t pith_sampler_chances(pith_sampler *sampler, pith_chance *out, int32_t cap);

/* ---- drafts ------------------------------------------------------------------------------- */

/*
 * Speculation that changes nothing. Tokens are drafted cheaply, and one pass computes the logits of
 * all of them. Each is compared with the token that the same sampler in the same state chooses from
 * the row before it. From the first that differs on they are forgotten. The bits of a row do not
 * depend on the other rows of its pass. So tokens, text and the bits of logits are those without
 * drafts.
 *
 * The worth of drafts is measured: how many tokens came true, and the time of a pass of several
 * rows beside that of one row. Where that does not pay nothing is drafted, and it is tried again
 * rarely. Figures decide whether something is drafted, never which token is chosen.
 */
typedef struct pith_draft_params {
    bool lookup;         /* drafts what followed the same words in the prompt or in the text so far
                            (default true) */
    bool always;         /* drafts wherever it can, whether that pays or not (default false) */
    int32_t n_max;       /* most tokens of a draft, 1 to 63 (default 15) */
    pith_engine *engine; /* of a smaller model with the same vocabulary, which drafts, too; NULL
                            (default): none. It is borrowed until the sequences that were generated
                            with it are freed, and belongs to the thread that generates. Its KV
                            memory is its own, and where that is full it drafts no more */
    uint32_t reserved[4];
} pith_draft_params;

PITH_API void pith_draft_params_default(pith_draft_params *out);

/* Whether sequences of the engine can be drafted for so; params may be NULL. UNSUPPORTED: a policy
   allows no way back (PITH_USE_DRAFT), or the model has recurrent layers. INVALID: n_max out of
   range, another vocabulary than the drafting model's, or the same engine. */
PITH_API pith_status pith_draft_check(const pith_engine *engine, const pith_draft_params *params,
                                      pith_error *err);

/* ---- generation --------------------------------------------------------------------------- */

typedef struct pith_generate_params {
    int32_t n_predict; /* most tokens; -1: until the end token or the budget. Default -1 */
    pith_sample_params sample;
    const char *const *stop; /* [n_stop] strings that end the text and are not part of it. The name
                                of a special token that is not printed ends it at that token */
    int32_t n_stop;
    const size_t *stop_len;     /* [n_stop] their bytes; NULL (default): each ends with its zero */
    bool ignore_end;            /* go on past end tokens */
    bool special;               /* print control tokens */
    pith_progress_fn *progress; /* of the prompt; may be NULL */
    void *progress_user;
    const char *message;  /* with recall `text`: the user's message as it stands in the prompt's
                             text, or all of that text. NULL (default): nothing is recalled within a
                             prompt */
    size_t message_len;   /* bytes of it */
    const char *recalled; /* the text that pith_seq_recall_text found, as it stands in the prompt.
                             It and all behind it are kept until the answer ends, as far as the
                             budget holds them. NULL (default): nothing was put in */
    const pith_draft_params *draft; /* NULL (default): nothing is drafted. While a tap listens
                                       nothing is, either. The scheduler has its own */
    bool keep_read; /* a prompt that is cancelled leaves the tokens that were read in the sequence,
                       without logits, so that the same prompt goes on from there. false (default):
                       the sequence is as it was, where nothing was evicted */
} pith_generate_params;

PITH_API void pith_generate_params_default(pith_generate_params *out);

/* Receives whole characters as soon as they are certain. Return false to stop. It must not change
   the sequence, nor look into its lanes where tokens are drafted. */
typedef bool pith_text_fn(void *user, const char *text, size_t len);

typedef enum pith_stop_reason {
    PITH_STOP_END,    /* end token */
    PITH_STOP_LENGTH, /* n_predict */
    PITH_STOP_STRING, /* a stop string */
    PITH_STOP_CALLER, /* the callback returned false */
    PITH_STOP_FULL,   /* KV memory or context exhausted; the text so far is whole */
} pith_stop_reason;

typedef struct pith_generate_result {
    pith_stop_reason reason;
    int32_t n_prompt; /* tokens evaluated of the prompt (not those that were cached) */
    int32_t n_cached; /* tokens of the prompt that the sequence held already */
    int32_t n_generated;
    double prompt_s; /* seconds */
    double generate_s;
    int32_t n_recalled; /* tokens that recall `text` put into the prompt, read beside n_prompt */
    int32_t n_draft;    /* tokens that were drafted, and of them those that came true */
    int32_t n_draft_accepted;
    uint32_t reserved[5];
} pith_generate_result;

/* Makes the sequence hold the prompt (pith_seq_sync), then samples tokens and hands their text to
   on_text (may be NULL). Afterwards the sequence holds the prompt and the generated tokens but the
   last, whose logits were not needed. pith_seq_logits is the row that the last was chosen from. A
   character that the last token leaves unfinished is not printed. params and result may be NULL.

   With params->message in an engine with recall `text`, a prompt that outgrows the keep budget is
   recalled in the same turn. Its tokens are evaluated up to the question (pith_recall_place of the
   message). There the text that pith_seq_recall_text finds is read as plain text, and then the
   question and all behind it. These stay until the answer ends or is longer than the keep budget
   holds beside them. The sequence then holds these tokens, too, and where this fails, those before
   the question. The prompt is read as it is where nothing was evicted until then, nothing is found,
   or its text does not hold the message's. Likewise where the message ends the prompt, so that no
   template follows it, and neither a label nor a question mark asks. For a conversation, which
   keeps its messages, put the text that is found into the message before the prompt is rendered, as
   `pith chat` does. Name it in params->recalled, and leave params->message NULL.

   As pith_batch_eval, also INVALID for a parameter out of range (named), and the statuses of
   pith_draft_check. Running out of KV memory while generating is no failure but PITH_STOP_FULL. */
PITH_API pith_status pith_generate(pith_seq *seq, const int32_t *prompt, int32_t n_prompt,
                                   const pith_generate_params *params, pith_text_fn *on_text,
                                   void *user, pith_generate_result *result, pith_error *err);

/* A generation that is pulled: the same tokens, text and sequence as pith_generate's, one token a
   call. */
typedef struct pith_generation pith_generation;

typedef struct pith_token {
    int32_t id;       /* -1: none, where the text has ended */
    const char *text; /* [len] whole characters that are certain now, valid until the next call */
    size_t len;
    bool ended;              /* the text is over: calls that follow say the same */
    pith_stop_reason reason; /* of the end */
} pith_token;

/* Reads the prompt, as pith_generate does. params is copied, and what it points to is borrowed
   until the generation is freed. A sequence has one generation at a time: beginning another ends
   it. The statuses of pith_generate for a prompt. */
PITH_API pith_status pith_generation_create(pith_seq *seq, const int32_t *prompt, int32_t n_prompt,
                                            const pith_generate_params *params,
                                            pith_generation **out, pith_error *err);

/* Evaluates the token that was handed out last, and chooses the next one. pith_seq_logits is the
   row that it was chosen from; pith_logits_logprob (inspect.h) says how likely it was. Afterwards
   the sequence holds the prompt and the tokens that were handed out but the last. INVALID: the
   sequence was freed, or changed since. The statuses of pith_generate. */
PITH_API pith_status pith_generation_next(pith_generation *generation, pith_token *out,
                                          pith_error *err);

/* The result so far; the reason is valid at the end. */
PITH_API void pith_generation_result(const pith_generation *generation, pith_generate_result *out);

/* Frees the generation, at any time. The sequence stays as the last call left it. NULL is
   ignored. */
PITH_API void pith_generation_free(pith_generation *generation);

#ifdef __cplusplus
}
#endif

#endif
