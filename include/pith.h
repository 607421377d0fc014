/*
 * pith.h - the whole public interface of Pith, a language-model inference engine whose KV cache
 * is a managed memory.
 *
 * Three nouns:
 *   pith_model   the weights and the tokenizer of one GGUF file. Immutable after load: any number
 *                of threads and engines may use one model at the same time.
 *   pith_engine  one KV memory budget, one set of worker threads and the scratch of a pass. One
 *                thread at a time may use an engine and the sequences that belong to it.
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
 *   - objects are made by _load or _create and released by _free, which accepts NULL.
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

/* What went wrong, in the caller's storage. message is always terminated. */
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

/* What this machine can do, measured: the bounds that speeds are judged against. */
typedef struct pith_machine {
    double read_bytes_per_s; /* streaming read of a buffer far larger than the caches */
    double copy_bytes_per_s; /* memcpy of its one half to the other, bytes read plus written */
    double f32_flop_per_s;   /* fused multiply-add, both operations counted, best kernel level */
    double int8_op_per_s;    /* int8 dot products, both operations counted, best kernel level */
    int32_t n_thread;        /* threads that measured together */
    uint32_t reserved[7];
} pith_machine;

/* Measures for about a second with n_thread threads (0: all processors). NOMEM. */
PITH_API pith_status pith_machine_measure(int32_t n_thread, pith_machine *out, pith_error *err);

/* ---- model -------------------------------------------------------------------------------- */

typedef struct pith_model pith_model;

/* Called while a long operation runs, fraction in [0,1]; return false to cancel it. */
typedef bool pith_progress_fn(void *user, double fraction);

typedef struct pith_model_params {
    bool vocab_only;            /* read metadata and tokenizer, no tensors (default false) */
    int32_t n_thread;           /* threads that prepare weights; 0: all processors (default) */
    pith_progress_fn *progress; /* may be NULL; called on the loading thread */
    void *progress_user;
    uint32_t reserved[8];
} pith_model_params;

PITH_API void pith_model_params_default(pith_model_params *out);

/* Loads a GGUF file. Every size and offset in the file is checked before use. The weights are
   repacked once for the processor's kernels; the file's mapping is given back meanwhile, so one
   copy of the weights stays in memory. params may be NULL.
   IO, FORMAT (damaged file), UNSUPPORTED (architecture, tensor type or tokenizer that Pith does
   not run), NOMEM, CANCELLED. */
PITH_API pith_status pith_model_load(const char *path, const pith_model_params *params,
                                     pith_model **out, pith_error *err);

/* Frees the model; every engine made from it must be freed before. NULL is ignored. */
PITH_API void pith_model_free(pith_model *model);

/* The model's shape. Strings are owned by the model and live as long as it does. */
typedef struct pith_model_info {
    const char *name;         /* general.name, or "" */
    const char *architecture; /* general.architecture */
    const char *file_type;    /* the type most weight bytes are stored in, "Q4_K" */
    const char *tokenizer;    /* "bpe/qwen2", "spm", "none" */
    int64_t n_param;          /* weights in all tensors */
    int64_t file_bytes;
    int64_t weight_bytes; /* bytes of weights in memory; 0 when vocab_only */
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
    bool runnable; /* false for vocab_only loads: no engine can be made */
    uint32_t reserved[8];
} pith_model_info;

PITH_API void pith_model_get_info(const pith_model *model, pith_model_info *out);

/* How queries and keys meet: logit = attn_scale * q . k, both rotated by their positions. Pair i of
   a head at position p is turned by the angle p * freq[i] and multiplied by magnitude; dimensions
   2 * n_pair and above are left alone. All zero for a vocab_only load whose file says no shape. */
typedef struct pith_attention_info {
    const double *freq; /* [n_pair] radians per position, scaling included; owned by the model */
    int32_t n_pair;
    bool adjacent;   /* pairs are dimensions (2i, 2i + 1); otherwise (i, i + n_pair) */
    float magnitude; /* 1 but for YaRN */
    float attn_scale;
    uint32_t reserved[8];
} pith_attention_info;

PITH_API void pith_model_get_attention(const pith_model *model, pith_attention_info *out);

/* Metadata of the file, in file order. */
PITH_API int64_t pith_model_meta_count(const pith_model *model);

/* Writes "value" as text (arrays abridged) into buf, always terminated when cap > 0, and points
   *key and *type ("u32", "string", "string[151936]" is written by the caller from type) to strings
   owned by the model. key and type may be NULL. RANGE when i is out of range. */
PITH_API pith_status pith_model_meta(const pith_model *model, int64_t i, const char **key,
                                     const char **type, char *buf, size_t cap);

/* One tensor as the file has it. */
typedef struct pith_tensor_info {
    const char *name; /* owned by the model */
    const char *type; /* "Q4_K" */
    int32_t n_dim;
    int64_t dim[4]; /* slowest first, as the docs write shapes: [n_row][n_col] */
    int64_t bytes;
} pith_tensor_info;

PITH_API int64_t pith_model_tensor_count(const pith_model *model);

/* NOT_FOUND when i is out of range. */
PITH_API pith_status pith_model_tensor(const pith_model *model, int64_t i, pith_tensor_info *out);

/* Rewrites a GGUF file with its matrices in another type: "F32", "F16", "BF16", "Q8_0", "Q4_0",
   "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K" or the mix "Q4_K_M". Vectors
   and norms stay as they are; a matrix whose row length does not fit the type falls back to one
   that does, which the log says. The bytes do not depend on n_thread (0: all processors).
   out_path is written beside and renamed at the end, so a failure leaves no half file. progress
   may be NULL. IO, FORMAT, INVALID (unknown type, the output is the input), UNSUPPORTED (a tensor
   of a type that Pith does not know), NOMEM, CANCELLED. */
PITH_API pith_status pith_quantize(const char *in_path, const char *out_path, const char *type,
                                   int32_t n_thread, pith_progress_fn *progress, void *user,
                                   pith_error *err);

/* ---- tokens ------------------------------------------------------------------------------- */

typedef enum pith_tokenize_flag {
    PITH_TOKENIZE_BOS = 1,     /* add BOS (and EOS) where the model's metadata asks for it */
    PITH_TOKENIZE_SPECIAL = 2, /* read the text of special tokens as those tokens */
} pith_tokenize_flag;

/* Tokenizes text of text_len bytes (any bytes; invalid UTF-8 is tokenized bytewise) into at most
   cap ids; *n_id receives the count. RANGE when cap is too small, *n_id is then the count needed
   (out may be NULL when cap is 0). UNSUPPORTED when the model has no tokenizer. Thread-safe. */
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
    const char *template_name;    /* one that comes along; NULL (default): the model's own */
    const pith_message *messages; /* [n_message] of plain text; contents are a user's */
    int32_t n_message;
    const char *json; /* instead of messages, JSON as chat clients send it: an object with the array
                         "messages" and, as the template knows them, "tools", "documents",
                         "enable_thinking"...: each key is a variable of the template */
    size_t json_len;
    uint32_t flags; /* PITH_CHAT_ values */
    int64_t now;    /* what a template's clock says, seconds since 1970 in the user's time zone. 0
                       (default): it has none; a template that insists is told 26 July 2024, so
                       that the same messages are the same prompt on any day */
    uint32_t reserved[8];
} pith_chat_params;

PITH_API void pith_chat_params_default(pith_chat_params *out);

/* Renders a conversation. params is needed during the call only. A BOS that the template starts
   with is left out where PITH_TOKENIZE_BOS adds one. INVALID: the conversation is not well-formed,
   the template refuses it (the message is then the template's own), or it takes too much (steps,
   depth, bytes: docs/templates.md). UNSUPPORTED: the model has no template, or one that is not
   understood. NOMEM. Thread-safe. */
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
   PITH_TOKENIZE_SPECIAL): those are read in what the template wrote; what looks like one in a
   user's text is text. (Tokens that a vocabulary calls user-defined are read everywhere.) model is
   the one that the prompt was made with. */
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

/* ---- engine ------------------------------------------------------------------------------- */

typedef struct pith_engine pith_engine;

typedef struct pith_engine_params {
    int32_t n_thread;   /* 0: all processors (default) */
    int64_t kv_bytes;   /* KV memory budget in bytes; 0: from kv_tokens */
    int32_t kv_tokens;  /* KV memory budget in tokens; 0: the model's trained context (default) */
    int32_t page_len;   /* entries of a page: 16, 32 or 64; 0 (default): 64, and 16 where `share`
                           compares pages */
    int32_t chunk;      /* most tokens of one pass (default 512) */
    const char *type_k; /* "f32", "f16" (default), "q8_0", "q4_0", "turbo4", "turbo3", "turbo2";
                           with other types in the first and last layers: "turbo2:q8_0=2+2".
                           docs/store.md describes them */
    const char *type_v; /* the same */
    const char *keep;   /* which entries stay: "NAME:key=value,..."; NULL (default) or "none": all.
                           With a policy and neither kv_bytes nor kv_tokens, the KV memory is what
                           one sequence of the trained context takes under it */
    const char *read;   /* which entries attention looks at: "NAME:key=value,..."; NULL (default) or
                           "none": all that are stored */
    const char *recall; /* how evicted tokens come back: "kv:key=value,..." or "text:..."; NULL
                           (default) or "none": they do not. docs/recall.md describes both */
    const char *share;  /* which pages of what was generated may stand for others:
                           "NAME:key=value,..."; NULL (default) or "none": none */
    uint32_t reserved[8];
} pith_engine_params;

PITH_API void pith_engine_params_default(pith_engine_params *out);

/* Makes an engine over model, which must outlive it. The KV pool is reserved here, never grown.
   The strings of params are not needed afterwards.
   INVALID (a value out of range, a policy or option that there is not, policies that do not go
   together, a budget below what is protected), IO (recall's file), UNSUPPORTED (a storage type that
   does not fit the head size, a vocab_only model, a share policy for a model without tokenizer),
   NOMEM. */
PITH_API pith_status pith_engine_create(const pith_model *model, const pith_engine_params *params,
                                        pith_engine **out, pith_error *err);

/* Frees the engine; its sequences must be freed before. NULL is ignored. */
PITH_API void pith_engine_free(pith_engine *engine);

/* The model that the engine was made over. */
PITH_API const pith_model *pith_engine_model(const pith_engine *engine);

/* Bytes of KV memory that n_token tokens of one sequence take with these params (whole pages; the
   most they take on the way, where a keep policy evicts, recall's guests and stretches that a
   share policy keeps apart there included), for planning
   before anything is allocated. INVALID, UNSUPPORTED. */
PITH_API pith_status pith_kv_estimate(const pith_model *model, const pith_engine_params *params,
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
    int64_t table_bytes;    /* page tables, lane heads, the pool's lists and what a keep policy
                               remembers of sequences, beside the pool */
    int64_t page_bytes;     /* one page; with different types in some layers, the largest */
    int64_t n_page;         /* in use, and of that size as many as there is room for */
    int64_t n_page_used;
    int32_t n_seq;
    uint32_t reserved[7];
} pith_kv_stats;

PITH_API void pith_engine_kv_stats(const pith_engine *engine, pith_kv_stats *out);

/* From now on peak_bytes counts from what is in use at this moment. */
PITH_API void pith_engine_kv_reset_peak(pith_engine *engine);

/* ---- storage types ------------------------------------------------------------------------ */

/* A type that keys or values can be stored in (docs/store.md). */
typedef struct pith_store_info {
    const char *name;     /* constant strings, all of them */
    const char *summary;  /* one line */
    const char *citation; /* where it comes from; "": nowhere in particular */
    bool rotated;         /* groups of values are rotated before they are coded */
    uint32_t reserved[8];
} pith_store_info;

/* Storage type i of those that there are, the largest first. NOT_FOUND past the last. */
PITH_API pith_status pith_store_type(int32_t i, pith_store_info *out);

/* Bits of a value of type i in a head of head_dim dimensions, scales included; 0 where the type
   cannot store such a head, or there is no such type. */
PITH_API double pith_store_bits(int32_t i, int32_t head_dim);

/* Whether pith_engine_params.type_k and type_v can be read, before there is a model. Both may be
   NULL. INVALID. */
PITH_API pith_status pith_store_check(const char *type_k, const char *type_v, pith_error *err);

/* Where so many query heads share a KV head, errors of its keys add up in all of them: q8_0 takes
   the place of a rotated type of K that was not forced ("turbo3:force"). */
#define PITH_SHARED_KEYS 6

/* How an engine with some params stores a layer. */
typedef struct pith_kv_layer_info {
    const char *type_k; /* constant strings; K's may be another than the one that was given: */
    const char *type_v;
    bool k_replaced; /* PITH_SHARED_KEYS or more query heads share a KV head */
    int64_t bytes_k; /* of a token in all KV heads, scales included; alignment, positions and what a
                        read policy keeps beside keys are not */
    int64_t bytes_v;
    int64_t page_bytes; /* of one KV head */
    uint32_t reserved[8];
} pith_kv_layer_info;

/* What pith_engine_create would make of params (NULL: the defaults) in a layer. INVALID (a layer
   that there is not, a value out of range), UNSUPPORTED (a type that does not fit the head size).
 */
PITH_API pith_status pith_kv_layer(const pith_model *model, const pith_engine_params *params,
                                   int32_t layer, pith_kv_layer_info *out, pith_error *err);

/* ---- keep policies ------------------------------------------------------------------------ */

/*
 * A keep policy evicts entries of a sequence, so that a lane holds at most a budget. When a lane
 * holds budget + slack entries, a round brings it back to the budget: the entries that the policy
 * thinks least of go, whole pages return to the pool, and what stays keeps its position.
 * docs/policies.md describes the rules and the policies.
 *
 * What is promised: a lane that grows holds at most budget + slack entries at any time, fewer than
 * that when an evaluation returns, and at most the budget right after a round. Rounds come at
 * numbers of tokens that depend on the sequence alone, so results depend neither on the chunk nor
 * on threads or company; a sequence that never comes to a round is bit for bit that of the full
 * cache.
 *
 * With the option overwrite=on an evaluation of one token is a step: in a lane that holds its
 * budget the token takes the place of the entry that the last step's attention made least of, so
 * that no page is taken or given back however many steps follow. Longer evaluations have rounds,
 * and one at their end where the budget is reached: how tokens are cut into evaluations matters
 * then.
 */

typedef struct pith_policy_info {
    const char *name;     /* constant strings, all of them */
    const char *summary;  /* one line */
    const char *citation; /* where it comes from */
    int32_t n_param;
    int32_t n_preset;
    uint32_t reserved[6];
} pith_policy_info;

typedef struct pith_param_info {
    const char *key;
    const char *type; /* "count": a whole number; "budget": also a share (50%) or bytes (64MiB);
                         "real": a number; "choice": one of the words that help lists; "text": a
                         name without comma, at most 255 bytes; "size": bytes (64MiB) */
    const char *help;
    char fallback[32]; /* the value when the option is not given */
    int64_t min;       /* of whole numbers: min <= value <= max; of "real", in thousandths; of
                          "size", in mebibytes */
    int64_t max;
    bool shared; /* a rule that every keep policy has */
    uint32_t reserved[7];
} pith_param_info;

/* Options under a name, which are read before those that follow it: "POLICY:NAME,key=value". */
typedef struct pith_preset_info {
    const char *name; /* constant strings, all of them */
    const char *options;
    const char *help;
    uint32_t reserved[8];
} pith_preset_info;

/* Keep policy i of those that there are. NOT_FOUND past the last. */
PITH_API pith_status pith_keep_policy(int32_t i, pith_policy_info *out);

/* Option j of keep policy i, the shared rules first. NOT_FOUND when i or j is out of range. */
PITH_API pith_status pith_keep_param(int32_t i, int32_t j, pith_param_info *out);

/* Preset j of keep policy i. NOT_FOUND when i or j is out of range. */
PITH_API pith_status pith_keep_preset(int32_t i, int32_t j, pith_preset_info *out);

/* Whether pith_engine_params.keep can be read, before there is a model; that a budget in bytes is
   enough shows only with one. keep may be NULL. INVALID. */
PITH_API pith_status pith_keep_check(const char *keep, pith_error *err);

/* What the options of a keep policy come to, those of its defaults and its preset included. */
typedef struct pith_keep_rules {
    const char *policy;      /* constant strings; NULL: the full cache, and the numbers are 0 */
    const char *granularity; /* "all", "head", "layer", "layer-head"; "" for the full cache */
    int32_t slack;
    int32_t prefix; /* positions below this always stay */
    int32_t sinks;  /* so many of a lane's oldest entries always stay */
    int32_t window; /* the last so many positions always stay; of a budget that is a share or a
                       size, without its recent part */
    int32_t segments;
    bool pin_prompt; /* positions that are marked as the prompt always stay */
    bool overwrite;  /* a token that is evaluated alone takes an entry's place in a full lane */
    uint32_t reserved[8];
} pith_keep_rules;

/* The rules of a text as for pith_engine_params.keep, which may be NULL. INVALID as
   pith_keep_check. */
PITH_API pith_status pith_keep_get_rules(const char *keep, pith_keep_rules *out, pith_error *err);

/* ---- read policies ------------------------------------------------------------------------ */

/*
 * A read policy evicts nothing: each chunk of a prompt, and each token that is evaluated alone,
 * attends to a part of what is stored, which the policy chooses anew for every layer, KV head and
 * chunk, and to the chunk's own tokens. docs/read.md describes the rules and the policies.
 *
 * What is promised: with a budget of at least the stored entries the results are bit for bit those
 * of full attention. Chunks are counted from the first token of an evaluation, and from the last
 * keep round in it, so results depend neither on the engine's chunk, which must be at least the
 * policy's, nor on threads or company; how a text is cut into evaluations matters. What a policy
 * keeps beside entries to choose by is a part of pages and counted with them.
 */

/* Read policy i of those that there are. NOT_FOUND past the last. */
PITH_API pith_status pith_read_policy(int32_t i, pith_policy_info *out);

/* Option j of read policy i, the shared rules first. NOT_FOUND when i or j is out of range. */
PITH_API pith_status pith_read_param(int32_t i, int32_t j, pith_param_info *out);

/* Preset j of read policy i. NOT_FOUND when i or j is out of range. */
PITH_API pith_status pith_read_preset(int32_t i, int32_t j, pith_preset_info *out);

/* Whether pith_engine_params.read can be read, before there is a model. read may be NULL.
   INVALID. */
PITH_API pith_status pith_read_check(const char *read, pith_error *err);

/* ---- recall ------------------------------------------------------------------------------- */

/*
 * Recall needs a keep policy, and brings back what that evicted. `kv` keeps evicted entries in a
 * second tier, host memory and then a file, and lets the queries of a turn's last tokens choose
 * which of them attention reads again, at their own positions: as guests, within the keep budget.
 * `text` writes evicted spans as text to a store that a new turn's question searches.
 * docs/recall.md describes both.
 *
 * What is promised of `kv`: a lane's entries and guests together are within the keep budget that
 * was asked for (and its slack between rounds), of which guests take a share; only where a budget
 * that is a share of the tokens comes to less than the policy protects are guests on top of that.
 * Guests are chosen anew by the last tokens of each evaluation of several (the option last), and
 * with every=N by each Nth token that is evaluated alone; a keep round that would fall among tokens
 * that choose together comes before them. So results depend neither on the chunk, nor on threads or
 * company; how a text is cut into evaluations matters. While nothing was evicted the bits are those
 * of the full cache.
 */

/* Recall form i. NOT_FOUND past the last. */
PITH_API pith_status pith_recall_policy(int32_t i, pith_policy_info *out);

/* Option j of form i. NOT_FOUND when i or j is out of range. */
PITH_API pith_status pith_recall_param(int32_t i, int32_t j, pith_param_info *out);

/* Whether pith_engine_params.recall can be read, before there is a model. recall may be NULL.
   INVALID. */
PITH_API pith_status pith_recall_check(const char *recall, pith_error *err);

/* ---- share -------------------------------------------------------------------------------- */

/*
 * A share policy lets one page of the KV memory stand in several places of a sequence. Tokens that
 * are evaluated alone form steps, which end at a blank line; when one ends, its pages are compared
 * with those of earlier steps of like words, and where two are near enough, the later one is given
 * back and the earlier one read in its place. docs/share.md describes the policies and the options.
 *
 * What is promised: what a sequence shares depends on its own tokens alone, neither on chunk and
 * threads nor on company, but where the option across=yes lets it use other sequences' pages. A
 * sequence never takes more pages than without a policy, and one that shares nothing is as without.
 * Any later write to a shared page copies it first. Files (pith_seq_save) hold what is shared, and
 * not which steps there were.
 */

/* Share policy i of those that there are. NOT_FOUND past the last. */
PITH_API pith_status pith_share_policy(int32_t i, pith_policy_info *out);

/* Option j of share policy i. NOT_FOUND when i or j is out of range. */
PITH_API pith_status pith_share_param(int32_t i, int32_t j, pith_param_info *out);

/* Whether pith_engine_params.share can be read, before there is a model. share may be NULL.
   INVALID. */
PITH_API pith_status pith_share_check(const char *share, pith_error *err);

typedef struct pith_seq pith_seq;

/* Two pages that were compared: a step's and an earlier step's. */
typedef struct pith_share_pair {
    const pith_seq *seq;
    int32_t pos;      /* position of the first entry of the page that could go */
    int32_t from_pos; /* and of the one that would stand for it */
    int32_t n;        /* entries that were compared */
    double cosine;    /* of the steps' bags of tokens */
    double paper;     /* distance as MemShare writes it; where comparing ended early, what it had
                         come to by then, likewise the next two */
    double rms;       /* root mean square difference of an element of K and V, mean over layers */
    double relative;  /* the difference's norm over the entries': 0 equal, about 1.41 unrelated */
    bool early;       /* comparing ended early: too far apart */
    bool shared;
    uint32_t reserved[8];
} pith_share_pair;

/* Called on the thread that evaluates, which must not call the engine or its sequences then, but
   for pith_seq_tokens and pith_seq_length. */
typedef void pith_share_fn(void *user, const pith_share_pair *pair);

/* From now on fn sees every pair that is compared; NULL ends it. With all: every pair is compared
   to the end, and nothing is shared. INVALID: the engine has no share policy. */
PITH_API pith_status pith_engine_set_share_log(pith_engine *engine, pith_share_fn *fn, void *user,
                                               bool all, pith_error *err);

/* ---- sequences ---------------------------------------------------------------------------- */

/* Makes an empty sequence. NOMEM. */
PITH_API pith_status pith_seq_create(pith_engine *engine, pith_seq **out, pith_error *err);

/* Frees the sequence and returns its pages. NULL is ignored. */
PITH_API void pith_seq_free(pith_seq *seq);

/* Makes a copy that shares every page; pages are copied when one side writes to them. NOMEM. */
PITH_API pith_status pith_seq_fork(const pith_seq *seq, pith_seq **out, pith_error *err);

/* Forgets all tokens at positions >= n_token and gives their pages back. What a keep policy has
   evicted below n_token stays away, so the sequence may then remember less than one that was
   evaluated to n_token; pith_seq_sync does not build on such a rest. Recall forgets what is at or
   above n_token, too, and its guests where the tokens that chose them go. INVALID when n_token is
   negative or beyond the sequence; KV_FULL when a policy overwrote entries in pages that a fork
   shares, and none is free to copy one to. The sequence is then unchanged. */
PITH_API pith_status pith_seq_truncate(pith_seq *seq, int32_t n_token, pith_error *err);

/* Says that the first n_token positions are the prompt, whose entries a keep policy with the option
   pin-prompt never evicts; 0 takes it back. pith_generate marks the first prompt that it reads, or
   one that it reads in the place of that; forgetting a part of the prompt takes the mark back, a
   fork keeps it, and so does a file for an engine with the same policy that pins. Mark before the
   positions are evaluated: what was evicted stays away. INVALID when n_token is negative, or when
   the policy's budget does not hold so many pinned entries, with the numbers. */
PITH_API pith_status pith_seq_mark_prompt(pith_seq *seq, int32_t n_token, pith_error *err);

/* The engine that the sequence belongs to. */
PITH_API pith_engine *pith_seq_engine(const pith_seq *seq);

/* Tokens so far; the next one gets this position. */
PITH_API int32_t pith_seq_length(const pith_seq *seq);

/* The tokens so far, [length], valid until the sequence changes. */
PITH_API const int32_t *pith_seq_tokens(const pith_seq *seq);

/* The logits of the last evaluated token that asked for them, [n_vocab], valid until the sequence
   changes; NULL when there are none. */
PITH_API const float *pith_seq_logits(const pith_seq *seq);

/* What one lane (the cache of one layer and KV head) holds. positions receives at most cap of the
   stored positions, in slot order, and may be NULL when cap is 0: ascending, but in a lane that was
   overwritten. INVALID. */
typedef struct pith_lane_info {
    int32_t n_entry;
    int32_t n_page;
    int64_t bytes;
} pith_lane_info;

PITH_API pith_status pith_seq_lane(const pith_seq *seq, int32_t layer, int32_t head,
                                   pith_lane_info *out, int32_t *positions, int32_t cap);

/* What keep rounds did to the tokens that a sequence holds. A fork goes on counting from its
   origin's numbers, a loaded sequence from zero; forgetting so much that every token left has all
   its entries (pith_seq_truncate, pith_seq_sync) returns to zero. */
typedef struct pith_keep_stats {
    int64_t rounds;
    int64_t evicted;        /* entries, over all lanes */
    int64_t live;           /* entries that the lanes hold now, over all lanes */
    int64_t bytes_freed;    /* of pages that rounds gave back, less copies of shared pages */
    double seconds;         /* spent in rounds */
    int32_t first_round_at; /* tokens in the sequence when the first round ran; -1: none */
    int32_t longest;        /* entries of the lane that holds most */
    int32_t budget;         /* entries per lane that a round leaves now, their mean where layers or
                               heads differ; -1 without a policy */
    int32_t first_overwrite_at; /* tokens in the sequence when a token first took the place of an
                                   entry (the option overwrite); -1: none did */
    int64_t overwritten;        /* of evicted: entries whose place a token took */
    uint32_t reserved[4];
} pith_keep_stats;

PITH_API void pith_seq_keep_stats(const pith_seq *seq, pith_keep_stats *out);

/* What a read policy did for the tokens that the sequence holds, over all layers, KV heads and
   chunks. Forks and files as for pith_keep_stats; forgetting so much that no token is left that
   read a part returns to zero. */
typedef struct pith_read_stats {
    int64_t chunks; /* chunks times lanes, generated tokens included */
    int64_t sparse; /* of them: those that read a part */
    int64_t stored; /* entries that the lanes of all those chunks held */
    int64_t read;   /* of them: those that were read */
    double seconds; /* spent choosing, over all threads */
    uint32_t reserved[8];
} pith_read_stats;

PITH_API void pith_seq_read_stats(const pith_seq *seq, pith_read_stats *out);

/* What recall holds of a sequence and did for it. Entries are counted over all lanes. */
typedef struct pith_recall_stats {
    int64_t recalls;   /* passes that chose guests, or texts that were retrieved */
    int64_t stored;    /* evicted entries in the tier; spans of text in the store */
    int64_t lost;      /* evicted entries that the tier had no room for any longer */
    int64_t guests;    /* entries that are back now; spans that were retrieved last */
    int64_t ram_bytes; /* of the tier */
    int64_t file_bytes;
    double seconds; /* spent remembering and choosing, over all threads; or writing and
                       searching */
    uint32_t reserved[8];
} pith_recall_stats;

PITH_API void pith_seq_recall_stats(const pith_seq *seq, pith_recall_stats *out);

/* What a share policy did for the tokens that a sequence holds. Forks and files as for
   pith_keep_stats. */
typedef struct pith_share_stats {
    int64_t steps_closed;
    int64_t steps_compared; /* of them: those that were long enough, with steps before them */
    int64_t steps_similar;  /* of them: those with a step of like words before them */
    int64_t pages_compared; /* pairs of pages, each in all lanes */
    int64_t pages_early;    /* of them: comparing ended before the last layer */
    int64_t pages_shared;   /* pages, or parts of them, each in all lanes, that stand for others */
    int64_t tokens_shared;  /* entries of a lane that they stand for; over the sequence's tokens:
                               the affected ratio of MemShare */
    int64_t bytes_saved;    /* of the pages that came free */
    double seconds;         /* spent closing and comparing */
    uint32_t reserved[8];
} pith_share_stats;

PITH_API void pith_seq_share_stats(const pith_seq *seq, pith_share_stats *out);

/* With recall `text`: the part of a user's message that is searched for. What follows the last
   "question:" in any case, where that is near the end; else all of a short message; of a longer one
   the last sentences that ask for something (a question mark, or a word such as "tell"), with what
   follows them, or the first ones where those open the message; else the last sentence. It begins
   and ends without white space. docs/recall.md has the rules. */
PITH_API void pith_recall_question(const char *message, size_t len, const char **out,
                                   size_t *out_len);

/* The byte of the message in front of which what is found belongs: where that question begins, its
   label and the beginning of that line included, or the message's end where the question opens it.
 */
PITH_API size_t pith_recall_place(const char *message, size_t len);

/* With recall `text`: the text to put into the user's message that asks, at pith_recall_place: a
   heading and the sentences found, lines of their own. No more than the keep budget can hold until
   the question is answered; runs a keep round first where a lane is over its budget, so that what
   would go next is found, too. *text is allocated, terminated and freed by pith_recall_free; NULL
   where nothing is found, nothing was evicted, or there is no such recall. Failures of the store
   are no errors: they are said once, and nothing is found. NOMEM, and INVALID as
   pith_seq_keep_round. */
PITH_API pith_status pith_seq_recall_text(pith_seq *seq, const char *question, size_t len,
                                          char **text, pith_error *err);
PITH_API void pith_recall_free(char *text);

/* Runs a round of the keep policy now, whatever the slack: every lane that holds more than its
   budget is brought to it. With a slack that the sequence never reaches, rounds come only here, so
   that a text can be read under the full cache and be cut once. Logits stay those that were
   computed; where there is no policy, or no lane above its budget, nothing happens. INVALID (the
   budget does not hold the pinned prompt), KV_FULL (pages that a fork shares are copied, and there
   is no room for the copies), NOMEM leave the sequence as it was. */
PITH_API pith_status pith_seq_keep_round(pith_seq *seq, pith_error *err);

/* Writes the sequence (tokens, positions, pages as stored, what the keep policy remembers of it) to
   a versioned, checksummed file; the file appears whole or not at all. IO, NOMEM. */
PITH_API pith_status pith_seq_save(const pith_seq *seq, const char *path, pith_error *err);

/* Reads such a file into a new sequence, which goes on as the one that was saved would have, bit
   for bit, where the keep policy and all its options are the same. The engine must have the same
   model shape, page length and storage types; its keep policy may be another: then what the one in
   the file remembered is left out, the engine's begins with entries that it knows nothing of, and
   a lane that holds budget + slack entries or more has its round at the beginning of the next
   evaluation. What recall has of the sequence is not in the file: nothing comes back of what was
   evicted before. Its read policy may be another, too; that tokens read a part is in their entries
   and not said in the file. IO, FORMAT (damaged), UNSUPPORTED (a later version of the format),
   INVALID (other model or types, named with both values), KV_FULL, NOMEM; nothing has changed then.
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
} pith_batch_item;

/* What one pass computed in one layer for the tokens of one sequence, before its keys and values
   are stored: rows of heads, every pointer valid during the call only. */
typedef struct pith_tap_rows {
    const pith_seq *seq; /* its length is that before the evaluation */
    int32_t layer;
    int32_t n_token;
    int32_t pos0;          /* position of the first; the others follow one by one */
    const int32_t *tokens; /* [n_token] */
    const float *q_pre;    /* [n_token][n_head][head_dim_k] after bias and norm, before rotation */
    const float *q;        /* [n_token][n_head][head_dim_k] after rotation, not yet scaled */
    const float *k;        /* [n_token][n_head_kv][head_dim_k] after rotation */
    const float *v;        /* [n_token][n_head_kv][head_dim_v] */
    uint32_t reserved[8];
} pith_tap_rows;

/* Called on the thread that evaluates, which must not call the engine or its sequences meanwhile.
   Return false to stop: the evaluation then fails as CANCELLED. */
typedef bool pith_tap_fn(void *user, const pith_tap_rows *rows);

/* From now on fn sees every layer of every evaluation: in a pass layers ascend, and within a layer
   the items of the batch. Each token is seen once per layer, however the batch is cut into passes
   (of an evaluation that fails, what was seen no longer counts), and nothing that is computed
   changes. NULL ends it. Without a tap there is no cost; with one, the memory of `chunk` rows of
   queries and a copy of them. INVALID; NOMEM leaves what was set. */
PITH_API pith_status pith_engine_set_tap(pith_engine *engine, pith_tap_fn *fn, void *user,
                                         pith_error *err);

/* Appends the tokens of every item (distinct sequences of this engine) in passes of at most
   `chunk` tokens. Results do not depend on the company in the batch, the chunk or the threads.
   On failure every sequence of the batch is as it was before the call; but where a keep policy had
   evicted entries in this call, which only CANCELLED can follow, the sequence holds the tokens of
   the passes that were done, without logits; and where recall had chosen guests in this call and
   nothing was evicted, it has none.
   With a keep policy the memory for at most budget + slack entries per lane must be free, however
   many tokens follow; rounds over pages that are shared with a fork may copy them.
   INVALID (token id out of range, a sequence twice), KV_FULL, CONTEXT, CANCELLED (progress or
   on_logits returned false), NOMEM. */
PITH_API pith_status pith_batch_eval(pith_engine *engine, const pith_batch_item *items,
                                     int32_t n_item, pith_progress_fn *progress, void *user,
                                     pith_error *err);

/* pith_batch_eval of one sequence, logits of the last token. */
PITH_API pith_status pith_seq_eval(pith_seq *seq, const int32_t *tokens, int32_t n_token,
                                   pith_error *err);

/* Makes the sequence hold exactly these tokens: keeps the common prefix, truncates and evaluates
   only the rest (at least the last token, so that logits are there). The result is that of a fresh
   sequence: where truncating would leave gaps of evicted entries, only what lies before the first
   gap is kept, of an engine with a read policy only tokens that no evaluation reads in part, and of
   one with a share policy those before the first that it shares. As
   pith_batch_eval. */
PITH_API pith_status pith_seq_sync(pith_seq *seq, const int32_t *tokens, int32_t n_token,
                                   pith_progress_fn *progress, void *user, pith_error *err);

/* What the model makes of a text as one vector, out [n_embd], of length 1: the hidden states after
   the last norm, of which the last token's, the first's or the mean is taken, as the file's key
   ARCH.pooling_type says (3, 2, 1); the last token's where it says nothing. The tokens are read in
   a sequence of their own, which must fit in the engine and is gone afterwards; those that the
   model wants around a text are the caller's (PITH_TOKENIZE_BOS). The same bits for any chunk and
   number of threads. INVALID (no tokens, an id out of range, an engine with a keep or read policy),
   CONTEXT, UNSUPPORTED (another pooling, or a model whose tokens see those behind them), FORMAT
   (such a key of another type), KV_FULL, CANCELLED (the tap returned false), NOMEM. */
PITH_API pith_status pith_embed(pith_engine *engine, const int32_t *tokens, int32_t n_token,
                                float *out, pith_error *err);

/* Returns a 64-bit FNV-1a hash of a logits row, so that two builds can be compared by eye. */
PITH_API uint64_t pith_logits_hash(const float *logits, int32_t n);

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
    uint32_t reserved[8];
} pith_sample_params;

PITH_API void pith_sample_params_default(pith_sample_params *out);

/* Makes a sampler for n_vocab tokens. INVALID (a parameter out of range, named), NOMEM. */
PITH_API pith_status pith_sampler_create(const pith_sample_params *params, int32_t n_vocab,
                                         pith_sampler **out, pith_error *err);
PITH_API void pith_sampler_free(pith_sampler *sampler);

/* Chooses a token from logits [n_vocab]; ties go to the lower id. */
PITH_API int32_t pith_sampler_sample(pith_sampler *sampler, const float *logits);

/* Tells the sampler of a token that was taken, prompt or generated, for the penalties. */
PITH_API void pith_sampler_accept(pith_sampler *sampler, int32_t token);

/* ---- generation --------------------------------------------------------------------------- */

typedef struct pith_generate_params {
    int32_t n_predict; /* most tokens; -1: until the end token or the budget. Default -1 */
    pith_sample_params sample;
    const char *const *stop; /* [n_stop] strings that end the text and are not part of it */
    int32_t n_stop;
    bool ignore_end;            /* go on past end tokens */
    bool special;               /* print control tokens */
    pith_progress_fn *progress; /* of the prompt; may be NULL */
    void *progress_user;
    const char *message; /* with recall `text`: the user's message as it stands in the prompt's
                            text, or all of that text. NULL (default): nothing is recalled within a
                            prompt */
    size_t message_len;  /* bytes of it */
    const char *recalled; /* what pith_seq_recall_text found, as it stands in the prompt's text: it
                             and what follows are kept until the answer ends, as far as the budget
                             holds them. NULL (default): nothing was put in */
    uint32_t reserved[2];
} pith_generate_params;

PITH_API void pith_generate_params_default(pith_generate_params *out);

/* Receives whole characters as soon as they are certain. Return false to stop. */
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
    uint32_t reserved[7];
} pith_generate_result;

/* Makes the sequence hold the prompt (pith_seq_sync), then samples tokens and hands their text to
   on_text (may be NULL). Afterwards the sequence holds the prompt and the generated tokens but the
   last, whose logits nobody asked for; pith_seq_logits is the row that the last was chosen from.
   A character that the last token leaves unfinished is not printed. params and result may be NULL.

   With params->message in an engine with recall `text`, a prompt that outgrows the keep budget is
   recalled in the same turn: its tokens are evaluated up to the question (pith_recall_place of the
   message), what pith_seq_recall_text finds for it is read there as plain text, and then the
   question and what follows it, all of which stay until the answer ends or is longer than the keep
   budget holds beside it. The sequence then holds these tokens, too, and where this fails, those
   before the question. Where nothing was evicted until then, nothing is found, or the prompt's text
   does not hold the message's, the prompt is read as it is; likewise where the message ends the
   prompt, so that no template follows it, and neither a label nor a question mark asks. For a
   conversation, which keeps its messages, put what is found into the message before the prompt is
   rendered, as `pith chat` does, name it in params->recalled, and leave params->message NULL.

   As pith_batch_eval, also INVALID for a parameter out of range (named); running out of KV memory
   while generating is no failure but PITH_STOP_FULL. */
PITH_API pith_status pith_generate(pith_seq *seq, const int32_t *prompt, int32_t n_prompt,
                                   const pith_generate_params *params, pith_text_fn *on_text,
                                   void *user, pith_generate_result *result, pith_error *err);

/* ---- many requests ------------------------------------------------------------------------ */

/*
 * A scheduler runs many requests in one engine and one KV budget: continuous batching. In each step
 * every running request generates a token, and what is left of the step's tokens reads prompts in
 * chunks. A request is admitted when the memory that it will take is set aside: under a keep policy
 * all of it, which is constant, so that nothing is ever preempted; without one a share of what it
 * may still grow by (`reserve`). Where memory runs out all the same, cached prefixes go first, and
 * then the request that was admitted last waits: what it holds is computed again later, or, where a
 * policy had altered it, kept in host memory meanwhile.
 *
 * Prefixes of prompts that requests have in common are computed once: full pages are found again by
 * a hash of all tokens before them, while somebody uses them and until the memory is needed.
 *
 * What is promised: each request gets the tokens that it would get alone, whatever the company and
 * the order, and ends in a defined state. One thread at a time runs steps and owns the engine,
 * whose other sequences must not be evaluated by others meanwhile; submit, cancel and wait may be
 * called from any thread.
 */
typedef struct pith_scheduler pith_scheduler;

typedef struct pith_scheduler_params {
    int32_t n_seq;       /* most answers that run at the same time (default 256) */
    int32_t n_queue;     /* most requests that wait; further ones are refused (default 1024) */
    int32_t step_tokens; /* most tokens of a step; 0 (default): the engine's chunk while nothing is
                            generated, and 128 otherwise. Who generates has a token in any case,
                            and where the cut of a prompt matters (a read policy, recall, a keep
                            policy that overwrites) the first of a step is read whole */
    double reserve;      /* 0 to 1: the share of what a request may still grow by that is set aside
                            when it is admitted; below 0 (default): 1 under a keep policy, else 0.5
                          */
    double watermark;    /* 0 to 1: the share of the KV memory that admitting leaves free (default
                            0.01); a request that would run alone ignores it */
    bool no_prefix;      /* nothing is reused across requests (default false) */
    bool pressure;       /* where memory runs out, before a request is put back: a keep round on the
                            largest, then pages shared at looser thresholds. Answers then depend on
                            company (default false) */
    int64_t swap_bytes;  /* host memory for requests that cannot be computed again; where it is full
                            such a request ends as PITH_STOP_FULL. Default 1 GiB */
    int32_t max_preempt; /* a request that was put back so often is set aside for in full (default
                            3) */
    uint32_t reserved[8];
} pith_scheduler_params;

PITH_API void pith_scheduler_params_default(pith_scheduler_params *out);

/* A token of an answer, valid during the call. */
typedef struct pith_answer_token {
    int64_t request;
    int32_t answer;   /* 0 to n_answer - 1 */
    int32_t token;    /* -1: text that had been held back, at the answer's end */
    const char *text; /* [len] whole characters that are certain now; may be none */
    size_t len;
    const float *logits; /* [n_vocab] that the token was chosen from; NULL without a token */
    uint32_t reserved[8];
} pith_answer_token;

/* Called on the thread that runs the step. Return false to end the answer as PITH_STOP_CALLER. It
   may submit and cancel, and must not step. */
typedef bool pith_answer_token_fn(void *user, const pith_answer_token *token);

/* How an answer ended. */
typedef struct pith_answer_result {
    int64_t request;
    int32_t answer;
    pith_status status;      /* OK; CANCELLED: by pith_scheduler_cancel, by its deadline, or by
                                freeing the scheduler; or what made its evaluation fail */
    const char *message;     /* with another status than OK: one sentence, valid during the call */
    pith_stop_reason reason; /* with OK */
    int32_t n_prompt;        /* tokens of the prompt that were computed for it */
    int32_t n_cached;        /* and those that were there already: of a request's second answer and
                                those behind it, all */
    int32_t n_generated;
    int32_t n_preempted; /* times that it was put back */
    double queue_s;      /* from submission to admission; all times are seconds */
    double prompt_s;     /* from there to the first token */
    double generate_s;   /* from there to the end */
    pith_share_stats share;
    pith_keep_stats keep;
    uint32_t reserved[8];
} pith_answer_result;

typedef void pith_answer_done_fn(void *user, const pith_answer_result *result);

typedef struct pith_request {
    const int32_t *prompt; /* [n_prompt] copied */
    int32_t n_prompt;
    const pith_generate_params *params; /* copied, strings and biases included; NULL: the defaults.
                                           progress and message are not looked at */
    int32_t n_answer;      /* 1 (default) to n_seq: answers to one prompt, which is computed once;
                              the seed of answer i is that of params plus i */
    int32_t priority;      /* higher ones are admitted first and put back last. Default 0 */
    double deadline_s;     /* seconds from submission in which it is to end; 0 (default): none */
    const int32_t *forced; /* [n_forced] copied: the first tokens of every answer, which are taken
                              in the place of what would be sampled and count as that (stop strings,
                              end tokens, n_predict); NULL: none */
    int32_t n_forced;
    pith_answer_token_fn *on_token; /* may be NULL */
    pith_answer_done_fn *on_done;   /* called once for each answer; may be NULL */
    void *user;
    uint32_t reserved[5];
} pith_request;

PITH_API void pith_request_default(pith_request *out);

/* params may be NULL. The engine must outlive the scheduler. INVALID (a value out of range, named),
   UNSUPPORTED (recall of text, which changes prompts), NOMEM. */
PITH_API pith_status pith_scheduler_create(pith_engine *engine, const pith_scheduler_params *params,
                                           pith_scheduler **out, pith_error *err);

/* Ends what waits and runs as CANCELLED, and frees the scheduler, its sequences and its cached
   prefixes. NULL is ignored. */
PITH_API void pith_scheduler_free(pith_scheduler *scheduler);

/* Queues a request, whose id is above those before. BUSY (the queue is full), KV_FULL (the prompt
   and n_predict, or without it the prompt, can never fit, with the numbers), CONTEXT (the prompt is
   longer than the model's trained context), INVALID (a parameter, named; a prompt that is to be
   pinned and that a keep policy's budget does not hold), CANCELLED (the scheduler is being freed),
   NOMEM. Thread-safe. */
PITH_API pith_status pith_scheduler_submit(pith_scheduler *scheduler, const pith_request *request,
                                           int64_t *id, pith_error *err);

/* Ends a request's answers at the next step, wherever it is: NOT_FOUND when it has ended already.
   Thread-safe. */
PITH_API pith_status pith_scheduler_cancel(pith_scheduler *scheduler, int64_t id);

/* Does one step: what was cancelled or is late ends, then tokens as described above. *idle (may be
   NULL): there is nothing to do. A request's failure is its own (on_done). BUSY: a step is running,
   this is a callback of it. */
PITH_API pith_status pith_scheduler_step(pith_scheduler *scheduler, bool *idle, pith_error *err);

/* Steps until there is nothing to do. */
PITH_API pith_status pith_scheduler_run(pith_scheduler *scheduler, pith_error *err);

/* Waits until there is something to do, at most so many seconds; true: there is. Thread-safe. */
PITH_API bool pith_scheduler_wait(pith_scheduler *scheduler, double seconds);

typedef struct pith_scheduler_stats {
    int64_t n_step;
    int64_t n_done;      /* requests that ended, of which */
    int64_t n_cancelled; /* cancelled or late, in the queue, reading the prompt, or generating */
    int64_t n_failed;
    int64_t n_refused; /* at submission */
    int32_t n_waiting; /* requests in the queue now */
    int32_t n_running; /* answers now, of which */
    int32_t n_reading; /* are reading their prompt */
    int32_t n_swapped; /* and are in host memory */
    int32_t peak_running;
    int64_t prompt_tokens;    /* computed, those that were computed again included */
    int64_t cached_tokens;    /* of prompts, found */
    int64_t generated_tokens; /* handed out */
    int64_t recomputed_tokens;
    int64_t preempted_recompute;
    int64_t preempted_swap;
    int64_t prefix_pages;    /* in the cache now, each in all lanes */
    int64_t prefix_bytes;    /* of them, that nobody else uses */
    int64_t prefix_dropped;  /* pages that made room */
    int64_t swapped_bytes;   /* in host memory now */
    int64_t pressure_rounds; /* with `pressure` */
    int64_t pressure_shared; /* pages, likewise */
    double seconds;          /* in steps */
    double schedule_s;       /* of them: not evaluating, sampling or in callbacks */
    double share_s;          /* of them: comparing pages */
    uint32_t reserved[8];
} pith_scheduler_stats;

/* Thread-safe; the numbers are those of the last step's end. */
PITH_API void pith_scheduler_get_stats(pith_scheduler *scheduler, pith_scheduler_stats *out);

/* ---- calibration -------------------------------------------------------------------------- */

/*
 * Statistics of a model's queries before rotation, which the TriAttention policies predict
 * attention from: per layer, query head and rotated pair (band) the mean as a complex number and
 * the mean modulus. docs/stats.md describes them and the files.
 */

typedef struct pith_stats pith_stats;

/* Which tokens' queries count. */
typedef enum pith_select {
    PITH_SELECT_UNKNOWN, /* a file that does not say */
    PITH_SELECT_ALL,
    PITH_SELECT_GENERATED, /* those that the model wrote after the text */
    PITH_SELECT_RANGES,
} pith_select;

/* How dimensions pair up in a file. A band's statistics are the same either way. */
typedef enum pith_pairing {
    PITH_PAIRING_UNKNOWN,
    PITH_PAIRING_HALF,     /* (i, i + n_pair) */
    PITH_PAIRING_ADJACENT, /* (2i, 2i + 1) */
} pith_pairing;

/* Tokens [begin, end) of a text. */
typedef struct pith_range {
    int32_t begin;
    int32_t end;
} pith_range;

typedef struct pith_calibrate_params {
    pith_select select;       /* default PITH_SELECT_ALL */
    const pith_range *ranges; /* [n_range] for PITH_SELECT_RANGES, ascending, apart */
    int32_t n_range;
    int32_t n_generate; /* tokens that follow each piece for PITH_SELECT_GENERATED. Default 512 */
    int32_t n_ctx;      /* the text is read in pieces of at most so many tokens, each from position
                           0; 0: the model's trained context (default) */
    int32_t n_centre;   /* centres per head. Default 1: the mean alone */
    int32_t n_sample;   /* queries of each head that centres are found from. Default 8192 */
    uint64_t seed;      /* of the centres. Default 0 */
    pith_sample_params sample; /* how tokens are generated */
    const char *text;          /* what the tokens are, for the file; may be NULL */
    pith_progress_fn *progress;
    void *progress_user;
    uint32_t reserved[8];
} pith_calibrate_params;

PITH_API void pith_calibrate_params_default(pith_calibrate_params *out);

/* Evaluates the tokens in sequences of its own and gathers statistics; the engine's tap is taken
   over and is unset afterwards. progress gets what is done of the tokens and, with several centres,
   of the heads whose centres are found: half of the whole each. The engine should hold all tokens
   of a piece: one with a keep or a read policy is refused. The same tokens and params give the same
   bits for any chunk and number of threads. INVALID (a parameter out of range, named; a selection
   without tokens, or with fewer than centres), FORMAT (queries that are all zero or no numbers),
   KV_FULL, CANCELLED, NOMEM. */
PITH_API pith_status pith_calibrate(pith_engine *engine, const int32_t *tokens, int32_t n_token,
                                    const pith_calibrate_params *params, pith_stats **out,
                                    pith_error *err);

/* Reads statistics: Pith's format, TRIA 1 and 2, or a PyTorch file of the TriAttention authors, of
   which nothing is executed. IO, FORMAT (damaged, or no statistics: a sentence with the value),
   UNSUPPORTED (a later version), NOMEM. */
PITH_API pith_status pith_stats_load(const char *path, pith_stats **out, pith_error *err);

/* Writes Pith's format; the file appears whole or not at all. IO, NOMEM. */
PITH_API pith_status pith_stats_save(const pith_stats *stats, const char *path, pith_error *err);

PITH_API void pith_stats_free(pith_stats *stats);

/* Whether the statistics can be of this model: shapes, and the fingerprint where there is one.
   INVALID names the difference. */
PITH_API pith_status pith_stats_check(const pith_stats *stats, const pith_model *model,
                                      pith_error *err);

/* Pointers are owned by the statistics. */
typedef struct pith_stats_info {
    const char *format;   /* "pith 1", "TRIA 2", "PyTorch" */
    const char *model;    /* its name, "" where the file does not say */
    const char *text;     /* what was read, "" where the file does not say */
    uint64_t fingerprint; /* 0: the file does not say */
    int64_t n_token;      /* read; 0: the file does not say */
    pith_select select;
    const pith_range *range; /* [n_range] what PITH_SELECT_RANGES selected */
    int32_t n_range;
    int32_t n_layer;
    int32_t n_head;
    int32_t n_head_kv; /* 0: the file does not say */
    int32_t n_pair;
    int32_t n_centre;
    pith_pairing pairing;
    const double *freq; /* [n_pair] radians per position; NULL: the file does not say */
    bool has_keys;
    uint32_t reserved[8];
} pith_stats_info;

PITH_API void pith_stats_get_info(const pith_stats *stats, pith_stats_info *out);

/* The queries of one head. */
typedef struct pith_stats_head {
    int64_t n_query;      /* that were averaged; 0: the layer has no statistics, -1: not known */
    const float *re;      /* [n_pair] the mean of x_a + i x_b over the pair's dimensions a and b */
    const float *im;      /* [n_pair] */
    const float *abs;     /* [n_pair] the mean modulus; R = |re + i im| / abs */
    const float *weight;  /* [n_centre] shares of the centres; NULL with one */
    const float *key_abs; /* [n_pair] the mean modulus of the keys that it reads, before rotation;
                             NULL: the file does not say */
    uint32_t reserved[8];
} pith_stats_head;

/* NOT_FOUND when layer or head is out of range. */
PITH_API pith_status pith_stats_get_head(const pith_stats *stats, int32_t layer, int32_t head,
                                         pith_stats_head *out);

/* The logit that a head's mean query expects of its mean key, for each distance: the curve of
   attention against distance (TriAttention, Equation 4), without the attention scale but with what
   rotation multiplies queries and keys by (YaRN). out [n]. INVALID for another model, UNSUPPORTED
   for statistics without keys, NOT_FOUND. */
PITH_API pith_status pith_stats_curve(const pith_stats *stats, const pith_model *model,
                                      int32_t layer, int32_t head, const double *distance,
                                      int32_t n, double *out, pith_error *err);

/* How well these curves tell the logits of a text: per head the mean over queries of Pearson's
   correlation between curve and logits at distances 1, 2, 3, ... that grow by half each time
   (Equations 24 and 25). The tokens must fit in the engine. out [n_layer][n_head]. As
   pith_calibrate. */
PITH_API pith_status pith_stats_reconstruct(const pith_stats *stats, pith_engine *engine,
                                            const int32_t *tokens, int32_t n_token, double *out,
                                            pith_error *err);

/*
 * Importance: what entries are worth for repeating a text (KVzip+), learnt from texts that the
 * model is made to repeat, as a part of statistics. docs/stats.md says what is learnt.
 */

/* A piece of text as tokens, without what a model wants before a text. */
typedef struct pith_importance_text {
    const int32_t *tokens; /* [n_token] */
    int32_t n_token;
} pith_importance_text;

typedef struct pith_importance_params {
    const pith_importance_text *texts; /* [n_text] each is read, and then repeated */
    int32_t n_text;
    bool hidden;             /* weights of the layers' inputs, too. Default false */
    const char *const *keep; /* [n_keep] policies whose scores are mapped to importance, "NAME" or
                                "NAME:options" without a budget; a map is of a policy's name */
    int32_t n_keep;
    const char *path; /* where statistics without maps are saved before policies are asked, which
                         read them there (stats=); NULL: nowhere */
    const char *text; /* what the texts are, for the file; may be NULL */
    pith_progress_fn *progress;
    void *progress_user;
    uint32_t reserved[8];
} pith_importance_params;

PITH_API void pith_importance_params_default(pith_importance_params *out);

/* Gathers statistics of the texts' queries, as pith_calibrate, and learns the importance of their
   entries. Every fifth text is held out to measure how well it is predicted. The engine is one
   without policies and holds twice the longest text and some tokens around it; its tap is taken
   over and is unset afterwards. The same texts give the same bits for any chunk and number of
   threads. As pith_calibrate; the statuses of policies and their engines; UNSUPPORTED without a
   tokenizer. */
PITH_API pith_status pith_calibrate_importance(pith_engine *engine,
                                               const pith_importance_params *params,
                                               pith_stats **out, pith_error *err);

/* Pointers are owned by the statistics. A lane is a layer and a KV head, layers first. */
typedef struct pith_importance_info {
    int32_t n_layer;
    int32_t n_head_kv;
    int32_t n_lane;
    int32_t n_map;
    const float *mean;      /* [n_lane] of the logarithm of importance */
    const float *deviation; /* [n_lane] */
    const float *key_r2;    /* [n_lane] R^2 on held-out texts of weights of a key's features */
    const float *hidden_r2; /* [n_lane] of the layer's input; NULL: not learnt */
    uint32_t reserved[8];
} pith_importance_info;

/* NOT_FOUND for statistics without importance. */
PITH_API pith_status pith_stats_get_importance(const pith_stats *stats, pith_importance_info *out);

/* The affine map of a policy's scores. */
typedef struct pith_importance_map {
    const char *policy;
    const float *slope;       /* [n_lane] 0 where scores do not rise with importance */
    const float *intercept;   /* [n_lane] */
    const float *correlation; /* [n_lane] */
    uint32_t reserved[4];
} pith_importance_map;

/* Map i, 0 <= i < n_map. NOT_FOUND. */
PITH_API pith_status pith_stats_get_map(const pith_stats *stats, int32_t i,
                                        pith_importance_map *out);

/* share[lane], [n_lane] = the part of its entries that a lane keeps where `retention` of all lanes'
   entries, the most important ones, are kept. NOT_FOUND for statistics without importance. */
PITH_API pith_status pith_stats_get_shares(const pith_stats *stats, double retention,
                                           double *share);

/* ---- projections -------------------------------------------------------------------------- */

/*
 * The bases that the read policy Loki scores keys in: per layer and KV head the eigenvectors of the
 * covariance of a text's keys. docs/projection.md describes them and the file.
 */

typedef struct pith_projection pith_projection;

/* Which keys the bases are of. They are applied to rotated keys either way. */
typedef enum pith_projection_keys {
    PITH_KEYS_ROTATED = 1, /* as they are stored */
    PITH_KEYS_PLAIN = 2,   /* as they were before rotation */
} pith_projection_keys;

typedef struct pith_projection_params {
    pith_projection_keys keys; /* default PITH_KEYS_ROTATED */
    int32_t n_ctx;    /* the text is read in pieces of at most so many tokens, each from position 0;
                         0: the model's trained context (default) */
    const char *text; /* what the tokens are, for the file; may be NULL */
    pith_progress_fn *progress;
    void *progress_user;
    uint32_t reserved[8];
} pith_projection_params;

PITH_API void pith_projection_params_default(pith_projection_params *out);

/* Evaluates the tokens in sequences of its own and finds the bases of their keys; the engine's tap
   is taken over and is unset afterwards. progress gets what is done of the tokens and of the bases.
   An engine with a keep or a read policy is refused. The same tokens and params give the same bits
   for any chunk and number of threads. params may be NULL. INVALID (a parameter out of range,
   named; fewer than two tokens), FORMAT (keys that are no numbers), KV_FULL, CANCELLED, NOMEM. */
PITH_API pith_status pith_projection_fit(pith_engine *engine, const int32_t *tokens,
                                         int32_t n_token, const pith_projection_params *params,
                                         pith_projection **out, pith_error *err);

/* IO, FORMAT (damaged, or no projection: a sentence with field and value), UNSUPPORTED (a later
   version), NOMEM. */
PITH_API pith_status pith_projection_load(const char *path, pith_projection **out, pith_error *err);
/* The file appears whole or not at all. IO, NOMEM. */
PITH_API pith_status pith_projection_save(const pith_projection *projection, const char *path,
                                          pith_error *err);
PITH_API void pith_projection_free(pith_projection *projection); /* NULL is ignored */

/* Whether the bases are of this model: shape and fingerprint. INVALID names the difference. */
PITH_API pith_status pith_projection_check(const pith_projection *projection,
                                           const pith_model *model, pith_error *err);

/* Pointers are owned by the projection. */
typedef struct pith_projection_info {
    const char *model; /* its name, "" where it has none */
    const char *text;  /* what was read, "" where nobody said */
    uint64_t fingerprint;
    int64_t n_token; /* read */
    pith_projection_keys keys;
    int32_t n_layer;
    int32_t n_head; /* KV heads */
    int32_t dim;    /* of a head */
    uint32_t reserved[8];
} pith_projection_info;

PITH_API void pith_projection_get_info(const pith_projection *projection,
                                       pith_projection_info *out);

/* The fewest dimensions in which the keys of a layer and KV head have the share (0 to 1) of their
   variance; layer or head -1: the most of any. 0 where there is no such layer or head. */
PITH_API int32_t pith_projection_rank(const pith_projection *projection, int32_t layer,
                                      int32_t head, double share);

#ifdef __cplusplus
}
#endif

#endif
