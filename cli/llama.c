/*
 * llama.c - the options of llama.cpp's programs that have no field here, so that a line which was
 * written for them runs. Options for things that Pith does otherwise, or not at all, are taken
 * without effect, and one line says so. Options that would change an answer are refused, but for
 * values that ask for the usual behaviour.
 *
 * Options that both programs have stand in the tables under Pith's names, with llama.cpp's spelling
 * beside them. Those tables are searched first, so that a spelling may stand here for the other
 * commands.
 */
#include "session.h"

/* Rows without a field: a flag, one with a value, one with or without on|off|auto. */
#define FLAG(name, alias, ...)                                                                     \
    {                                                                                              \
        name, alias, NULL, OPTION_TAKEN, __VA_ARGS__                                               \
    }
#define VALUE(name, alias, ...)                                                                    \
    {                                                                                              \
        name, alias, "VALUE", OPTION_TAKEN_VALUE, __VA_ARGS__                                      \
    }
#define SWITCH(name, alias, ...)                                                                   \
    {                                                                                              \
        name, alias, NULL, OPTION_TAKEN_SWITCH, __VA_ARGS__                                        \
    }
/* Refused: but for these values, or always. */
#define VALUES(...)                                                                                \
    .choices = (const char *const[])                                                               \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define LACKS(name, alias, ...)                                                                    \
    {                                                                                              \
        name, alias, "VALUE", OPTION_LACKING, __VA_ARGS__                                          \
    }
#define LACKS_FLAG(name, alias, ...)                                                               \
    {                                                                                              \
        name, alias, NULL, OPTION_LACKING, __VA_ARGS__                                             \
    }
#define ENV(suffix) .env = "LLAMA_ARG_" suffix

const struct option llama_option_table[] = {
    /* Where it computes: whole layers are on one device, their pages beside them. */
    VALUE("--split-mode", "-sm", ENV("SPLIT_MODE")),
    SWITCH("--fit", "-fit", ENV("FIT")),
    VALUE("--fit-target", "-fitt", ENV("FIT_TARGET")),
    VALUE("--fit-ctx", "-fitc", ENV("FIT_CTX")),
    VALUE("--override-tensor", "-ot", ENV("OVERRIDE_TENSOR")),
    FLAG("--cpu-moe", "-cmoe", ENV("CPU_MOE")),
    VALUE("--n-cpu-moe", "-ncmoe", ENV("N_CPU_MOE")),
    VALUE("--n-cpu-ffn", "-ncffn", ENV("N_CPU_FFN")),
    VALUE("--moe-cache-mib", NULL, ENV("MOE_CACHE_MIB")),
    VALUE("--rpc", NULL, ENV("RPC")),
    FLAG("--kv-offload", "-kvo", ENV("KV_OFFLOAD"), .also = "-nkvo --no-kv-offload"),
    FLAG("--op-offload", NULL, .also = "--no-op-offload"),
    FLAG("--no-host", NULL, ENV("NO_HOST")),
    FLAG("--repack", NULL, ENV("REPACK"), .also = "-nr --no-repack"),

    /* How it loads: --cache-weights maps. */
    FLAG("--mlock", NULL, ENV("MLOCK")),
    FLAG("--mmap", NULL, ENV("MMAP"), .also = "--no-mmap"),
    FLAG("--direct-io", "-dio", ENV("DIO"), .also = "-ndio --no-direct-io"),
    VALUE("--load-mode", "-lm", ENV("LOAD_MODE")),
    VALUE("--lazy-mode", "-lzm", ENV("LAZY_MODE")),
    FLAG("--check-tensors", NULL),
    FLAG("--offline", NULL, ENV("OFFLINE")),
    FLAG("--warmup", NULL, .also = "--no-warmup"),

    /* How it computes: always so that the same tokens follow. */
    SWITCH("--flash-attn", "-fa", ENV("FLASH_ATTN")),
    VALUE("--batch-size", "-b", ENV("BATCH")),
    VALUE("--threads-batch", "-tb"),
    VALUE("--cpu-mask", "-C", .also = "-Cb --cpu-mask-batch"),
    VALUE("--cpu-range", "-Cr", .also = "-Crb --cpu-range-batch"),
    VALUE("--cpu-strict", NULL, .also = "--cpu-strict-batch"),
    VALUE("--prio", NULL, .also = "--prio-batch"),
    VALUE("--poll", NULL, .also = "--poll-batch"),
    VALUE("--numa", NULL, ENV("NUMA")),
    FLAG("--perf", NULL, ENV("PERF"), .also = "--no-perf"),
    FLAG("--backend-sampling", "-bs", ENV("BACKEND_SAMPLING")),

    /* The KV cache: one memory for all, whole pages, no window of its own. */
    FLAG("--swa-full", NULL, ENV("SWA_FULL")),
    VALUE("--defrag-thold", "-dt", ENV("DEFRAG_THOLD")),
    FLAG("--kv-unified", "-kvu", ENV("KV_UNIFIED"), .also = "-no-kvu --no-kv-unified"),
    VALUE("--ctx-checkpoints", "-ctxcp", ENV("CTX_CHECKPOINTS"), .also = "--swa-checkpoints"),
    VALUE("--checkpoint-min-step", "-cms", ENV("CHECKPOINT_MIN_SPACING_NT")),
    VALUE("--cache-ram", "-cram", ENV("CACHE_RAM")),
    VALUE("--cache-reuse", NULL, ENV("CACHE_REUSE")),
    FLAG("--cache-idle-slots", NULL, ENV("CACHE_IDLE_SLOTS"), .also = "--no-cache-idle-slots"),
    FLAG("--cache-prompt", NULL, ENV("CACHE_PROMPT"), .also = "--no-cache-prompt"),
    VALUE("--prompt-cache", NULL),
    FLAG("--prompt-cache-all", NULL, .also = "--prompt-cache-ro"),
    FLAG("--no-context-shift", NULL, ENV("CONTEXT_SHIFT")),
    LACKS_FLAG("--context-shift", NULL, .help = "--keep streaming evicts instead"),
    VALUE("--parallel", "-np", ENV("N_PARALLEL")),
    FLAG("--cont-batching", "-cb", ENV("CONT_BATCHING"), .also = "-nocb --no-cont-batching"),

    /* The server. */
    VALUE("--threads-http", NULL, ENV("THREADS_HTTP")),
    VALUE("--sse-ping-interval", NULL, ENV("SSE_PING_INTERVAL")),
    VALUE("--slot-prompt-similarity", "-sps"),
    VALUE("--tags", NULL, ENV("TAGS")),
    FLAG("--reuse-port", NULL, ENV("REUSE_PORT")),
    FLAG("--ui", NULL, ENV("UI"), .also = "--no-ui --webui --no-webui"),
    FLAG("--props", NULL, ENV("ENDPOINT_PROPS")),
    FLAG("--metrics", NULL, ENV("ENDPOINT_METRICS")),
    FLAG("--slots", NULL, ENV("ENDPOINT_SLOTS"), .also = "--no-slots"),
    LACKS("--path", NULL, ENV("STATIC_PATH")),
    LACKS("--api-prefix", NULL, ENV("API_PREFIX")),
    LACKS("--cors-origins", NULL, ENV("CORS_ORIGINS"), VALUES("*")),
    LACKS("--models-dir", NULL, ENV("MODELS_DIR"), .help = "a server has one model"),
    LACKS("--tools", NULL, ENV("TOOLS"), .help = "a client runs the tools"),
    LACKS_FLAG("--embeddings", NULL, ENV("EMBEDDINGS"), .also = "--embedding",
               .help = "it serves no embeddings"),
    LACKS_FLAG("--reranking", NULL, ENV("RERANKING"), .also = "--rerank",
               .help = "it ranks no documents"),
    LACKS("--pooling", NULL, ENV("POOLING"), .help = "it serves no embeddings"),

    /* Conversations. */
    FLAG("--jinja", NULL, ENV("JINJA"), .also = "--no-jinja"),
    FLAG("--conversation", "-cnv"),
    LACKS_FLAG("--no-conversation", "-no-cnv", .help = "\"pith run\" continues a text"),
    FLAG("--single-turn", "-st"),
    LACKS_FLAG("--interactive", "-i", .also = "-if --interactive-first -ins --instruct",
               .help = "\"pith chat\" is a conversation"),
    FLAG("--multiline-input", "-mli"),
    FLAG("--simple-io", NULL),
    FLAG("--show-timings", NULL, ENV("SHOW_TIMINGS"), .also = "--no-show-timings"),
    FLAG("--display-prompt", NULL, .also = "--no-display-prompt"),
    LACKS("--reasoning-format", NULL, ENV("THINK"), VALUES("auto", "deepseek")),
    LACKS("--reasoning", "-rea", ENV("REASONING"), VALUES("on", "auto"),
          .help = "--no-thinking and requests turn it off"),
    LACKS("--reasoning-budget", NULL, ENV("THINK_BUDGET"), VALUES("-1"),
          .help = "--no-thinking and requests turn thinking off"),
    LACKS("--chat-template-kwargs", NULL, ENV("CHAT_TEMPLATE_KWARGS"), VALUES("{}"),
          .help = "requests have chat_template_kwargs"),
    LACKS("--in-prefix", NULL, .help = "--chat-template writes the text around a message"),
    LACKS("--in-suffix", NULL, .help = "--chat-template writes the text around a message"),

    /* Output. */
    SWITCH("--color", "-co", .also = "--colors"),
    FLAG("--verbose", "-v", .also = "--log-verbose --verbose-prompt"),
    VALUE("--verbosity", "-lv", ENV("LOG_VERBOSITY"), .also = "--log-verbosity"),
    FLAG("--log-disable", NULL),
    VALUE("--log-file", NULL, ENV("LOG_FILE")),
    SWITCH("--log-colors", NULL, ENV("LOG_COLORS")),
    FLAG("--log-prefix", NULL, ENV("LOG_PREFIX"), .also = "--no-log-prefix"),
    FLAG("--log-timestamps", NULL, ENV("LOG_TIMESTAMPS"), .also = "--no-log-timestamps"),
    FLAG("--log-jsonl", NULL, ENV("LOG_JSONL"), .also = "--no-log-jsonl"),

    /* Drafts, which change no token. */
    VALUE("--draft-min", NULL, ENV("SPEC_DRAFT_N_MIN"), .also = "--draft-n-min --spec-draft-n-min"),
    VALUE("--draft-p-min", NULL, ENV("SPEC_DRAFT_P_MIN"), .also = "--spec-draft-p-min"),
    VALUE("--draft-p-split", NULL, ENV("SPEC_DRAFT_P_SPLIT"), .also = "--spec-draft-p-split"),
    VALUE("--threads-draft", "-td", .also = "-tbd --threads-batch-draft"),
    VALUE("--n-gpu-layers-draft", "-ngld", ENV("N_GPU_LAYERS_DRAFT"),
          .also = "--gpu-layers-draft --spec-draft-ngl"),
    VALUE("--device-draft", "-devd", .also = "--spec-draft-device"),
    VALUE("--cache-type-k-draft", "-ctkd", ENV("SPEC_DRAFT_CACHE_TYPE_K"),
          .also = "--spec-draft-type-k"),
    VALUE("--cache-type-v-draft", "-ctvd", ENV("SPEC_DRAFT_CACHE_TYPE_V"),
          .also = "--spec-draft-type-v"),
    VALUE("--ctx-size-draft", "-cd"),
    VALUE("--lookup-cache-static", "-lcs", .also = "-lcd --lookup-cache-dynamic"),

    /* Samplers that there are not: with the values that turn them off they may stand. */
    LACKS("--mirostat", NULL, VALUES("0")),
    VALUE("--mirostat-lr", NULL, .also = "--mirostat-ent"),
    LACKS("--typical", NULL, .also = "--typical-p", VALUES("1")),
    LACKS("--tfs", NULL, VALUES("1")),
    LACKS("--top-nsigma", NULL, .also = "--top-n-sigma", VALUES("-1", "0")),
    LACKS("--xtc-probability", NULL, VALUES("0")),
    VALUE("--xtc-threshold", NULL),
    LACKS("--dry-multiplier", NULL, VALUES("0")),
    VALUE("--dry-base", NULL,
          .also = "--dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker"),
    LACKS("--dynatemp-range", NULL, VALUES("0")),
    VALUE("--dynatemp-exp", NULL),
    LACKS("--adaptive-target", NULL, VALUES("-1")),
    VALUE("--adaptive-decay", NULL),
    LACKS("--samplers", NULL, .also = "--sampler-seq --sampling-seq",
          .help = "the order is penalties, top-k, top-p, min-p, temperature"),

    /* The model is read as its file says. */
    LACKS("--rope-scaling", NULL, ENV("ROPE_SCALING_TYPE"), .help = "the model's file decides"),
    LACKS("--rope-scale", NULL, ENV("ROPE_SCALE"), VALUES("0", "1"),
          .help = "the model's file decides"),
    LACKS("--rope-freq-base", NULL, ENV("ROPE_FREQ_BASE"), VALUES("0"),
          .help = "the model's file decides"),
    LACKS("--rope-freq-scale", NULL, ENV("ROPE_FREQ_SCALE"), VALUES("0", "1"),
          .help = "the model's file decides"),
    LACKS("--yarn-orig-ctx", NULL, ENV("YARN_ORIG_CTX"), VALUES("0"),
          .help = "the model's file decides"),
    LACKS("--yarn-ext-factor", NULL, ENV("YARN_EXT_FACTOR"), VALUES("-1"),
          .help = "the model's file decides"),
    LACKS("--yarn-attn-factor", NULL, ENV("YARN_ATTN_FACTOR"), VALUES("-1", "1"),
          .help = "the model's file decides"),
    LACKS("--yarn-beta-slow", NULL, ENV("YARN_BETA_SLOW"), VALUES("-1", "1"),
          .help = "the model's file decides"),
    LACKS("--yarn-beta-fast", NULL, ENV("YARN_BETA_FAST"), VALUES("-1", "32"),
          .help = "the model's file decides"),
    LACKS("--grp-attn-n", "-gan", VALUES("1")),
    VALUE("--grp-attn-w", "-gaw"),
    LACKS("--override-kv", NULL, .help = "the model's file decides"),
    LACKS("--lora", NULL, .also = "--lora-scaled", .help = "it reads no adapters"),
    LACKS("--control-vector", NULL, .also = "--control-vector-scaled"),
    LACKS("--mmproj", "-mm", ENV("MMPROJ"), .also = "-mmu --mmproj-url",
          .help = "it reads no images"),
    LACKS("--image", NULL, .also = "--audio --video", .help = "it reads no images"),
    FLAG("--no-mmproj", NULL, ENV("MMPROJ_AUTO"), .also = "--mmproj-auto --no-mmproj-auto"),
    FLAG("--mmproj-offload", NULL, ENV("MMPROJ_OFFLOAD"), .also = "--no-mmproj-offload"),
    {0},
};
