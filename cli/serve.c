/*
 * serve.c - `pith serve`: a model behind HTTP. The command reads options, makes model and engine,
 * starts the server, and waits for the signal that ends it.
 *
 * Options have llama-server's names where it has the same.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "budget.h"
#include "command.h"
#include "draft.h"
#include "ranks.h"
#include "server.h"
#include "session.h"
#include "shipped.h"

#define MODEL_FILE "pith-mini.gguf"
#define CONTEXTS_DEFAULT 4 /* that the KV memory holds where nothing sizes it */
#define KEYS_MAX 256
#define TEMPLATE_DEFAULT "chatml" /* as llama-server has it */

struct listen_options {
    const char *host;
    int32_t port;
    struct option_texts keys;
    const char *key_file;
    const char *tls_key;
    const char *tls_cert;
    const char *alias;
    int32_t timeout_s;
    int32_t drain_s;
    int32_t hang_s;
    const char *events;
    int64_t body_max;
    int64_t json_max; /* 0: four times body_max */
    int64_t stream_max;
    int32_t n_connection;
    bool log;
};

struct template_options {
    const char *name;
    const char *file;
    bool jinja;
    bool metrics;
    bool slots;
    const char *slot_folder;
};

struct work_options {
    int32_t n_parallel;
    int32_t n_slot;
    int32_t n_queue;
    int32_t n_predict;
    int64_t swap_bytes;
    bool no_prefix;
};

struct serve_options {
    struct model_options model;
    struct listen_options listen;
    struct template_options chat;
    struct work_options work;
    struct sample_options sample;
    struct draft_options draft;
    struct memory_options memory;
};

#define AT(member) .offset = offsetof(struct listen_options, member)
static const struct option listen_table[] = {
    {"--host", NULL, "NAME", OPTION_TEXT, AT(host), .help = "the address to listen on",
     .env = "LLAMA_ARG_HOST"},
    {"--port", NULL, "N", OPTION_INT, AT(port), .max = 65535, .help = "the port; 0: any, printed",
     .env = "LLAMA_ARG_PORT"},
    {"--api-key", NULL, "KEY", OPTION_TEXTS, AT(keys), .absent = "none",
     .help = "a key that clients must send; repeatable, or several between commas",
     .env = "LLAMA_API_KEY"},
    {"--api-key-file", NULL, "FILE", OPTION_TEXT, AT(key_file), .absent = "none",
     .help = "a file of keys, one in each line", .env = "LLAMA_ARG_API_KEY_FILE"},
    {"--ssl-key-file", NULL, "FILE", OPTION_TEXT, AT(tls_key), .absent = "none",
     .help = "the private key (PEM) for TLS", .env = "LLAMA_ARG_SSL_KEY_FILE"},
    {"--ssl-cert-file", NULL, "FILE", OPTION_TEXT, AT(tls_cert), .absent = "none",
     .help = "its certificate (PEM)", .env = "LLAMA_ARG_SSL_CERT_FILE"},
    {"--alias", "-a", "NAME", OPTION_TEXT, AT(alias), .absent = "the model's own",
     .help = "the model's name in answers", .env = "LLAMA_ARG_ALIAS"},
    {"--timeout", "-to", "N", OPTION_INT, AT(timeout_s), .min = 1, .max = 86400,
     .help = "seconds that a client may keep the server waiting", .env = "LLAMA_ARG_TIMEOUT"},
    {"--drain", NULL, "N", OPTION_INT, AT(drain_s), .max = 86400,
     .help = "seconds that running requests get when the server is to end"},
    {"--hang", NULL, "N", OPTION_INT, AT(hang_s), .min = 2, .max = 86400,
     .help = "seconds without a sign of the model after which /health/live says 503"},
    {"--body", NULL, "SIZE", OPTION_BYTES, AT(body_max), .min = 1024, .max = 0x1p40,
     .absent = "64MiB", .help = "largest body of a request"},
    {"--body-memory", NULL, "SIZE", OPTION_BYTES, AT(json_max), .min = 1024, .max = 0x1p42,
     .absent = "4 times --body", .help = "most memory that a body takes as JSON"},
    {"--behind", NULL, "SIZE", OPTION_BYTES, AT(stream_max), .min = 1024, .max = 0x1p40,
     .absent = "1MiB", .help = "how far a reader may be behind for --timeout seconds"},
    {"--connections", NULL, "N", OPTION_INT, AT(n_connection), .min = 1, .max = 1 << 16,
     .help = "most connections"},
    {"--kv-events-config", NULL, "JSON", OPTION_TEXT, AT(events), .absent = "none",
     .help = "tell routers over ZeroMQ what is cached, as vLLM does: {\"endpoint\": ...}"},
    {"--verbose", "-v", NULL, OPTION_FLAG, AT(log), .help = "a line for each request"},
    {0},
};
#undef AT

#define AT(member) .offset = offsetof(struct template_options, member)
static const struct option chat_table[] = {
    {"--chat-template", NULL, "NAME", OPTION_TEXT, AT(name), .absent = "the model's own",
     .help = "how messages become a prompt: chatml, llama3, ..., or a template's text",
     .env = "LLAMA_ARG_CHAT_TEMPLATE", .one_of = "the template"},
    {"--chat-template-file", NULL, "FILE", OPTION_TEXT, AT(file), .absent = "none",
     .help = "a file with a Jinja template", .env = "LLAMA_ARG_CHAT_TEMPLATE_FILE",
     .one_of = "the template"},
    {"--jinja", NULL, NULL, OPTION_FLAG, AT(jinja), .help = "taken: templates always are",
     .env = "LLAMA_ARG_JINJA"},
    {"--metrics", NULL, NULL, OPTION_FLAG, AT(metrics), .help = "taken: /metrics is always there",
     .env = "LLAMA_ARG_ENDPOINT_METRICS"},
    {"--slots", NULL, NULL, OPTION_FLAG, AT(slots), .help = "taken: /slots is always there",
     .env = "LLAMA_ARG_ENDPOINT_SLOTS"},
    {"--slot-save-path", NULL, "FOLDER", OPTION_TEXT, AT(slot_folder), .absent = "none",
     .help = "where /slots saves and restores", .env = "LLAMA_ARG_SLOT_SAVE_PATH"},
    {0},
};
#undef AT

#define AT(member) .offset = offsetof(struct work_options, member)
static const struct option work_table[] = {
    {"--parallel", "-np", "N", OPTION_INT, AT(n_parallel), .min = 1, .max = 1 << 16,
     .help = "most answers that are written at the same time", .unset = "-1 auto",
     .env = "LLAMA_ARG_N_PARALLEL"},
    {"--slot-count", NULL, "N", OPTION_INT, AT(n_slot), .max = 1 << 16,
     .help = "conversations that requests may name (id_slot) and that stay in the KV memory"},
    {"--queue", NULL, "N", OPTION_INT, AT(n_queue), .min = 1, .max = 1 << 20,
     .help = "most requests that wait; further ones are told to come again (429)"},
    {"--swap", NULL, "SIZE", OPTION_BYTES, AT(swap_bytes), .max = 0x1p62,
     .absent = "1GiB; with a size or auto of --kv 0",
     .help = "host memory for conversations and requests whose KV memory others need"},
    {"--predict", "-n", "N", OPTION_INT, AT(n_predict), .min = -1, .max = INT32_MAX,
     .absent = "until the model ends the text",
     .help = "most tokens of an answer whose request does not say", .also = "--n-predict",
     .env = "LLAMA_ARG_N_PREDICT"},
    {"--no-prefix", NULL, NULL, OPTION_FLAG, AT(no_prefix),
     .help = "compute every prompt whole, also a beginning that others share",
     .also = "--no-cache-prompt", .negative = "--cache-prompt", .env = "!LLAMA_ARG_CACHE_PROMPT"},
    {0},
};
#undef AT

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct serve_options, model),
     .without = "the one that comes with Pith"},
    {"Server", listen_table, offsetof(struct serve_options, listen)},
    {"Conversations", chat_table, offsetof(struct serve_options, chat)},
    {"Scheduling", work_table, offsetof(struct serve_options, work)},
    {"Sampling, where a request does not say", sample_option_table,
     offsetof(struct serve_options, sample)},
    {"Drafts", draft_option_table, offsetof(struct serve_options, draft)},
    {"KV memory", memory_option_table, offsetof(struct serve_options, memory)},
    LLAMA_GROUP,
    {0},
};

static void defaults(void *options)
{
    struct serve_options *o = options;
    o->listen = (struct listen_options){
        .host = "127.0.0.1",
        .port = 8080,
        .timeout_s = 600,
        .drain_s = 30,
        .hang_s = 600,
        .body_max = 64 << 20,
        .stream_max = 1 << 20,
        .n_connection = 512,
    };
    o->work = (struct work_options){.n_parallel = 16, .n_slot = 64, .n_queue = 64, .n_predict = -1};
    o->work.swap_bytes = -1;
    sample_options_default(&o->sample);
    o->sample.seed = -1;
    draft_options_default(&o->draft, "auto");
    memory_options_default(&o->memory);
}

/* ---- from options to a server ---- */

/* Objects that the server borrows until it ends. */
struct owned {
    void *at[OPTION_TEXTS_MAX + 8];
    int n;
};

static char *own(struct owned *owned, char *text)
{
    if (text == NULL)
        cli_fail("no memory for the options");
    owned->at[owned->n++] = text;
    return text;
}

static void owned_free(struct owned *owned)
{
    while (owned->n > 0)
        free(owned->at[--owned->n]);
}

struct keys {
    const char *key[KEYS_MAX];
    int32_t n;
};

static void add_key(struct keys *keys, const char *key)
{
    if (key[0] == '\0')
        return;
    if (keys->n == KEYS_MAX)
        cli_fail_usage("--api-key, --api-key-file: there are more than %d keys", KEYS_MAX);
    keys->key[keys->n++] = key;
}

/* Splits text in place. */
static void add_keys(struct keys *keys, char *text, const char *between)
{
    char *rest = NULL;
    for (char *key = strtok_r(text, between, &rest); key != NULL;
         key = strtok_r(NULL, between, &rest))
        add_key(keys, key);
}

static void read_keys(struct keys *keys, const struct listen_options *o, struct owned *owned)
{
    for (int32_t i = 0; i < o->keys.n; i++)
        add_keys(keys, own(owned, strdup(o->keys.text[i])), ",");
    if (o->key_file != NULL)
        add_keys(keys, own(owned, cli_read_file(o->key_file).data), "\r\n");
    if (keys->n == 0 && (o->keys.n > 0 || o->key_file != NULL))
        cli_fail_usage("%s: there is no key in it",
                       o->key_file != NULL ? "--api-key-file" : "--api-key");
}

/* "chatml" is a name, "{{ ... }}" a template. */
static void read_template(struct serve_options *o, const pith_model *model,
                          struct server_config *config)
{
    const struct template_options *t = &o->chat;
    if (t->name != NULL && t->file != NULL)
        cli_fail_usage("--chat-template and --chat-template-file (%s): give one", t->file);
    struct chat_options chat = {.template_name = t->name, .template_file = t->file};
    if (t->file != NULL) {
        chat_template_read(&chat);
        session_check_template(model, &chat);
        config->template_text = chat.template_text;
    } else if (t->name != NULL && strchr(t->name, '{') != NULL) {
        session_try_template(model, "--chat-template", t->name);
        config->template_text = t->name;
    } else if (t->name != NULL) {
        session_check_template(model, &chat);
        config->template_name = t->name;
    } else if (pith_chat_template(model) == NULL) {
        config->template_name = TEMPLATE_DEFAULT;
        cli_note("the model has no chat template: messages are written as " TEMPLATE_DEFAULT
                 " has them (--chat-template)");
    }
}

static void check_folder(const char *folder)
{
    struct stat st;
    if (folder != NULL && (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode)))
        cli_fail_usage("--slot-save-path: \"%s\" is no folder", folder);
}

static void read_tls(const struct listen_options *o, struct server_config *config,
                     struct owned *owned)
{
    if ((o->tls_key == NULL) != (o->tls_cert == NULL))
        cli_fail_usage("--ssl-key-file and --ssl-cert-file go together: give both");
    if (o->tls_key == NULL)
        return;
    config->tls_key = own(owned, cli_read_file(o->tls_key).data);
    config->tls_cert = own(owned, cli_read_file(o->tls_cert).data);
}

/* Tokens that one request may have at most: what all of the KV memory holds of one sequence. */
static int32_t most_tokens(const struct session *s)
{
    pith_kv_stats kv;
    int64_t low = 0, high = s->info.n_ctx_train, bytes, context = budget_context(s);
    pith_engine_kv_stats(s->engine, &kv);
    if (context > 0 && context < high)
        high = context;
    while (low < high) {
        int64_t n = (low + high + 1) / 2;
        bool fits = pith_kv_estimate(s->model, &s->params, n, &bytes, NULL) == PITH_OK &&
                    bytes <= kv.reserved_bytes;
        if (fits)
            low = n;
        else
            high = n - 1;
    }
    return (int32_t)low;
}

/* Pages of all lanes that the KV memory holds. */
static int64_t count_blocks(const struct session *s)
{
    pith_kv_stats kv;
    int64_t bytes = 0;
    pith_engine_kv_stats(s->engine, &kv);
    if (pith_kv_estimate(s->model, &s->params, kv.page_len, &bytes, NULL) != PITH_OK || bytes <= 0)
        return 0;
    return kv.whole_bytes / bytes;
}

static pith_scheduler_params schedule_params(const struct session *s, const struct work_options *o)
{
    pith_scheduler_params p;
    pith_scheduler_params_default(&p);
    p.n_seq = s->n_answer;
    p.n_queue = o->n_queue;
    p.n_slot = o->n_slot;
    p.swap_bytes = s->swap_bytes;
    p.n_ctx = budget_context(s);
    p.no_prefix = o->no_prefix;
    p.led = true;
    return p;
}

/* ---- the life ---- */

/* Asked of the engine before the start: since then it is the model thread's. */
struct engine_said {
    pith_kv_stats kv;
    char layers[512]; /* "": all are the processor's */
};

static void ask_engine(const struct session *s, struct engine_said *said)
{
    pith_engine_kv_stats(s->engine, &said->kv);
    if (!session_stages(s, said->layers, sizeof(said->layers)))
        said->layers[0] = '\0';
}

static void say_start(const struct session *s, const struct server_config *config,
                      const struct engine_said *said, int32_t port)
{
    char all[32], one[32];
    int64_t bytes = 0;
    pith_kv_estimate(s->model, &s->params, config->n_ctx, &bytes, NULL);
    const char *open = strchr(config->host, ':') != NULL ? "[" : "";
    const char *shut = open[0] != '\0' ? "]" : "";
    printf("listening on %s://%s%s%s:%d\n", config->tls_key != NULL ? "https" : "http", open,
           config->host, shut, port);
    if (said->layers[0] != '\0')
        printf("layers: %s\n", said->layers);
    printf("KV memory %s; one request may take %d tokens, %s of it\n",
           cli_bytes(said->kv.whole_bytes, all), config->n_ctx, cli_bytes(bytes, one));
    cli_finish_output();
}

static void warn_open(const struct server_config *config)
{
    bool local = strcmp(config->host, "localhost") == 0 || strncmp(config->host, "127.", 4) == 0 ||
                 strcmp(config->host, "::1") == 0;
    if (!local && config->n_key == 0)
        cli_note("warning: --host %s without --api-key lets everybody use the model", config->host);
}

/* Waits for SIGINT or SIGTERM, which are blocked, at most `seconds`; below 0: without end. */
static bool wait_signal(const sigset_t *set, double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    int got;
    do
        got = seconds < 0.0 ? sigwaitinfo(set, NULL) : sigtimedwait(set, NULL, &t);
    while (got < 0 && errno == EINTR);
    return got > 0;
}

/* Running requests may end, within the limit; a second signal ends them at once. */
static void drain(struct server *server, const sigset_t *set, int32_t limit_s)
{
    double until = clock_s() + limit_s;
    server_drain(server);
    if (server_busy(server) > 0)
        cli_note("waits for %d running requests, %d s at most", server_busy(server), limit_s);
    while (clock_s() < until && !server_wait(server, 0.05))
        if (wait_signal(set, 0.0))
            break;
    if (server_busy(server) > 0)
        cli_note("ends %d requests that still run", server_busy(server));
}

static void start_session(struct session *s, struct serve_options *o)
{
    s->n_ctx = o->memory.n_ctx;
    s->drafting = o->draft.what;
    s->n_answer = o->work.n_parallel;
    s->swap_bytes = o->work.swap_bytes;
    s->no_bar = true;
    session_load(s, &o->model, false);
    draft_load(s, &o->draft, &o->model);
    budget_settle(s, &o->model, &o->memory, BUDGET_SERVER, 0);
    budget_several(s, &o->model, &o->memory, CONTEXTS_DEFAULT);
    session_start(s, &o->model, &o->memory, 0);
    pith_seq_free(s->seq); /* the scheduler has its own */
    s->seq = NULL;
}

/* Where SIGINT and SIGTERM are waited for: blocked before there are threads, which inherit that. */
static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigprocmask(SIG_BLOCK, set, NULL);
}

static int64_t json_most(const struct listen_options *l)
{
    return l->json_max != 0 ? l->json_max : 4 * l->body_max;
}

/* A host as the system knows it: "[::1]", as URLs have it, is ::1. */
static const char *bare_host(const char *host, struct owned *owned)
{
    size_t len = strlen(host);
    if (host[0] != '[' || host[len - 1] != ']' || strchr(host, ':') == NULL)
        return host;
    char *bare = own(owned, strdup(host + 1));
    bare[len - 2] = '\0';
    return bare;
}

/* Listens before the model is loaded; returns the part of the configuration that says where. */
static struct server_config open_door(const struct listen_options *l, struct owned *owned)
{
    struct server_config config = {.host = bare_host(l->host, owned),
                                   .port = l->port,
                                   .events = l->events,
                                   .n_connection = l->n_connection};
    pith_error err;
    read_tls(l, &config, owned);
    cli_check(server_open(&config, &config.door, &err), &err);
    return config;
}

/* Makes the configuration that the options ask for; *bias is the caller's to free, when the server
   has ended. */
static struct server_config make_config(struct serve_options *o, const struct session *s,
                                        const struct server_config *door, pith_logit_bias **bias)
{
    const struct listen_options *l = &o->listen;
    struct server_config config = {
        .model = s->model,
        .engine = s->engine,
        .model_path = s->path,
        .alias = l->alias,
        .door = door->door,
        .host = door->host,
        .port = door->port,
        .tls_key = door->tls_key,
        .tls_cert = door->tls_cert,
        .policy = {s->keep, s->read, s->recall, s->share},
        .slot_folder = o->chat.slot_folder,
        .schedule = schedule_params(s, &o->work),
        .random_seed = (o->sample.seed < 0),
        .n_ctx = most_tokens(s),
        .n_block = count_blocks(s),
        .hang_s = l->hang_s,
        .events = l->events,
        .timeout_s = l->timeout_s,
        .body_max = l->body_max,
        .json_max = json_most(l),
        .stream_max = l->stream_max,
        .n_connection = door->n_connection,
        .log = l->log,
    };
    read_template(o, s->model, &config);
    pith_generate_params_default(&config.generate);
    config.generate.n_predict = o->work.n_predict;
    config.generate.sample = sample_params(&o->sample, bias);
    sample_check(&config.generate.sample, s->model);
    return config;
}

/* Another rank than 0 has no clients. SIGINT and SIGTERM are rank 0's, too, which ends all. */
static int follow(struct serve_options *o)
{
    struct session s = {0};
    sigset_t set;
    pith_error err;
    pith_scheduler *scheduler;
    block_signals(&set);
    start_session(&s, o);
    pith_scheduler_params params = schedule_params(&s, &o->work);
    params.draft = draft_start(&s, &o->draft, &o->model);
    cli_check(pith_scheduler_create(s.engine, &params, &scheduler, &err), &err);
    ranks_follow(scheduler);
    pith_scheduler_free(scheduler);
    session_free(&s);
    return EXIT_SUCCESS;
}

static int run(void *options)
{
    struct serve_options *o = options;
    struct session s = {0};
    struct keys keys = {0};
    struct owned owned = {0};
    struct server *server = NULL;
    pith_logit_bias *bias;
    struct engine_said said;
    pith_error err;
    sigset_t set;
    (void)engine_params(&o->model, &o->memory); /* complains before the model is read */
    check_folder(o->chat.slot_folder);
    read_keys(&keys, &o->listen, &owned);
    if (o->model.path == NULL && o->model.hf == NULL)
        o->model.path = own(&owned, cli_find_shipped(MODEL_FILE));
    if (ranks_is_follower())
        return follow(o);
    block_signals(&set);
    struct server_config door = open_door(&o->listen, &owned);
    start_session(&s, o);
    /* Before the configuration, which names the engine: it may make that anew. */
    const pith_draft_params *draft = draft_start(&s, &o->draft, &o->model);
    struct server_config config = make_config(o, &s, &door, &bias);
    config.schedule.draft = draft;
    config.keys = keys.key;
    config.n_key = keys.n;
    ask_engine(&s, &said);
    cli_check(server_start(&config, &server, &err), &err);
    warn_open(&config);
    say_start(&s, &config, &said, server_port(server));
    wait_signal(&set, -1.0);
    drain(server, &set, o->listen.drain_s);
    server_stop(server);
    session_free(&s);
    free(bias);
    owned_free(&owned);
    return EXIT_SUCCESS;
}

const struct command command_serve = {
    .name = "serve",
    .summary = "answer requests over HTTP",
    .synopsis = "[-m MODEL] [--port N] [--kv-memory SIZE] [--keep POLICY]",
    .notes =
        "The APIs of OpenAI, Anthropic and llama-server, which docs/server.md lists. All requests\n"
        "share one KV memory, and each may take all of it, with --kv at most its context. A\n"
        "request that does not fit is refused with numbers, and nothing is cut without a word.\n"
        "\n"
        "  pith serve -m model.gguf --kv-memory 2GiB\n"
        "  pith serve -m model.gguf --keep triattention:budget=4096 --recall kv:ram=1GiB\n"
        "  curl http://127.0.0.1:8080/v1/chat/completions -d\n"
        "      '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n"
        "\n"
        "SIGTERM and Ctrl-C let running requests end (--drain); a second one ends them at once.",
    .groups = groups,
    .options_size = sizeof(struct serve_options),
    .defaults = defaults,
    .run = run,
};
