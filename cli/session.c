/*
 * session.c - from options to a loaded model, an engine and a prompt.
 *
 * Invariant: names and defaults of an option that several verbs have stand here once.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "budget.h"
#include "models.h"
#include "outputs.h"
#include "ranks.h"

#include "pith/inspect.h"
#include "pith/policy.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the groups ---- */

static const char *const cpu_levels[] = {"scalar", "avx2", "avx512", "amx", "neon", NULL};
#define KV_TYPES "f32, f16, q8_0, q4_0, turbo4, turbo3, turbo2, bf16"
static const char *const page_lens[] = {"16", "32", "64", NULL};

#define AT(member) .offset = offsetof(struct model_options, member)
const struct option model_option_table[] = {
    {"--model", "-m", "FILE", OPTION_TEXT, AT(path), .required = true,
     .help = "the model: a GGUF file, or the name of one of `pith models`",
     .env = "LLAMA_ARG_MODEL", .one_of = "the model"},
    {"MODEL", NULL, NULL, OPTION_TEXT, AT(path), .help = "the same, without -m"},
    {"--hf-repo", "-hf", "REPO", OPTION_TEXT, AT(hf), .absent = "",
     .help = "a model of a hub, USER/REPO[:QUANT], pulled where it is not here", .also = "-hfr",
     .env = "LLAMA_ARG_HF_REPO", .one_of = "the model"},
    {"--hf-file", "-hff", "FILE", OPTION_TEXT, AT(hf_file), .absent = "by QUANT",
     .help = "its file of that repository", .env = "LLAMA_ARG_HF_FILE"},
    {"--threads", "-t", "N", OPTION_INT, AT(n_thread), .max = 1024, .absent = "all processors",
     .help = "threads that compute", .unset = "-1", .env = "LLAMA_ARG_THREADS"},
    {"--device", "-dev", "NAME", OPTION_TEXT, AT(device), .absent = "auto",
     .help = "where it computes: a name of `pith devices`, or GPUs as cuda:0,cuda:1; "
             "auto takes the first GPU",
     .env = "LLAMA_ARG_DEVICE"},
    {"--n-gpu-layers", "-ngl", "N", OPTION_TEXT, AT(gpu_layers), .absent = "auto",
     .help = "layers on the GPU, the last ones: a number, all, or auto for as many as fit; "
             "one more than there are: the output, too",
     .also = "--gpu-layers", .env = "LLAMA_ARG_N_GPU_LAYERS"},
    {"--main-gpu", "-mg", "N", OPTION_TEXT, AT(main_gpu), .absent = "the first",
     .help = "number of the GPU that auto takes", .env = "LLAMA_ARG_MAIN_GPU"},
    {"--tensor-split", "-ts", "SHARES", OPTION_TEXT, AT(tensor_split),
     .absent = "by their free memory", .help = "shares of layers of several GPUs, as 3,1",
     .env = "LLAMA_ARG_TENSOR_SPLIT"},
    {"--cpu-level", NULL, "LEVEL", OPTION_CHOICE, AT(cpu_level), .choices = cpu_levels,
     .absent = "the best there is", .help = "kernels to use"},
    {"--cache-weights", NULL, "DIR", OPTION_MAYBE, AT(cache_weights), .absent = "off",
     .help = "keep the packed weights in a file, beside the model or in DIR, and map it at later "
             "starts. A model may then be larger than memory"},
    {"--ranks", NULL, "WEIGHTS", OPTION_TEXT, AT(ranks), .absent = "all as much",
     .help = "over several machines, how much of the model each has, as 3,1; of info also the "
             "number of machines (docs/distributed.md)"},
    {"--split", NULL, "WHAT", OPTION_CHOICE, AT(split), .choices = ranks_splits, .absent = "rows",
     .help = "and what: rows of every layer, whole layers, or auto by how fast the net is"},
    {0},
};
#undef AT

#define AT(member) .offset = offsetof(struct memory_options, member)
const struct option memory_option_table[] = {
    {"--ctx-size", "-c", "N", OPTION_INT, AT(n_ctx), .max = INT32_MAX,
     .absent = "the model's context, or as much as half of the free memory holds",
     .help = "KV memory in tokens", .env = "LLAMA_ARG_CTX_SIZE", .one_of = "KV memory"},
    {"--kv", NULL, "HOW MUCH", OPTION_TEXT, AT(kv), .absent = "all that the tokens need",
     .help = "KV memory in one word: a share of the full f16 cache (25%), a size of the whole "
             "process (500MiB), or auto. Pith chooses types, --keep and --recall, and says which",
     .one_of = "KV memory"},
    {"--kv-memory", NULL, "SIZE", OPTION_BYTES, AT(kv_bytes), .max = 0x1p62,
     .absent = "as the tokens need",
     .help = "most bytes of all that grows with conversations, as 512MiB or 2G: "
             "pages, recall's tier, tables and the state of policies",
     .one_of = "KV memory"},
    {"--cache-type-k", "-ctk", "TYPE", OPTION_TEXT, AT(type_k),
     .help = "storage type of keys: " KV_TYPES ", "
             "as TYPE[:force][:centre][:EDGE=FIRST+LAST], EDGE for the FIRST and LAST layers",
     .env = "LLAMA_ARG_CACHE_TYPE_K"},
    {"--cache-type-v", "-ctv", "TYPE", OPTION_TEXT, AT(type_v),
     .help = "storage type of values, as TYPE[:EDGE=FIRST+LAST]", .env = "LLAMA_ARG_CACHE_TYPE_V"},
    {"--chunk", NULL, "N", OPTION_INT, AT(chunk), .min = 1, .max = 8192,
     .help = "most tokens of one pass over a prompt", .also = "-ub --ubatch-size",
     .env = "LLAMA_ARG_UBATCH"},
    {"--page", NULL, "N", OPTION_CHOICE, AT(page_len), .choices = page_lens,
     .absent = "64; with --share and --read quest 16", .help = "tokens of a page of KV memory"},
    {"--keep", NULL, "POLICY", OPTION_TEXT, AT(keep), .absent = "none",
     .help = "evict entries, as streaming:budget=1024"},
    {"--read", NULL, "POLICY", OPTION_TEXT, AT(read), .absent = "none",
     .help = "attend to a part of the stored entries, as quoka:budget=1024"},
    {"--recall", NULL, "FORM", OPTION_TEXT, AT(recall),
     .absent = "none; with --keep in run, chat and serve kv",
     .help = "bring back evicted entries, as kv:ram=1GiB or text"},
    {"--share", NULL, "POLICY", OPTION_TEXT, AT(share), .absent = "none",
     .help = "let pages of reasoning that recurs stand for each other, as memshare:step=0.9"},
    {0},
};
#undef AT

#define AT(member) .offset = offsetof(struct sample_options, member)
const struct option sample_option_table[] = {
    {"--seed", "-s", "N", OPTION_LONG, AT(seed), .min = -1, .max = 0x1p62,
     .help = "seed of the random numbers; -1: from the clock"},
    {"--temp", NULL, "X", OPTION_FLOAT, AT(params.temperature), .max = 1e6,
     .help = "temperature; 0 takes the likeliest token", .also = "--temperature",
     .env = "LLAMA_ARG_TEMPERATURE"},
    {"--top-k", NULL, "N", OPTION_INT, AT(params.top_k), .min = -1, .max = INT32_MAX,
     .help = "choose among the N likeliest; 0 or -1: all", .env = "LLAMA_ARG_TOP_K"},
    {"--top-p", NULL, "X", OPTION_FLOAT, AT(params.top_p), .max = 1,
     .help = "choose among the likeliest that reach probability X; 1: all",
     .env = "LLAMA_ARG_TOP_P"},
    {"--min-p", NULL, "X", OPTION_FLOAT, AT(params.min_p), .max = 1,
     .help = "choose among those at least X times as likely as the likeliest; 0: all",
     .env = "LLAMA_ARG_MIN_P"},
    {"--repeat-penalty", NULL, "X", OPTION_FLOAT, AT(params.repeat_penalty), .min = 1e-6,
     .max = 1e6, .help = "divides the logits of recent tokens; 1: off",
     .env = "LLAMA_ARG_REPEAT_PENALTY"},
    {"--presence-penalty", NULL, "X", OPTION_FLOAT, AT(params.presence_penalty), .min = -1e6,
     .max = 1e6, .help = "taken from the logits of recent tokens",
     .env = "LLAMA_ARG_PRESENCE_PENALTY"},
    {"--frequency-penalty", NULL, "X", OPTION_FLOAT, AT(params.frequency_penalty), .min = -1e6,
     .max = 1e6, .help = "the same, once for each time a token occurred",
     .env = "LLAMA_ARG_FREQUENCY_PENALTY"},
    {"--repeat-last-n", NULL, "N", OPTION_INT, AT(params.penalty_last_n), .min = -1, .max = 1 << 20,
     .help = "tokens that count as recent; 0: none, -1: all"},
    {"--logit-bias", "-l", "ID+X", OPTION_TEXTS, AT(bias),
     .help = "add X to a token's logit, as 15043+1, 29905-0.5, 2-inf; repeatable"},
    {0},
};
#undef AT

#define AT(member) .offset = offsetof(struct grammar_options, member)
const struct option grammar_option_table[] = {
    {"--grammar", NULL, "TEXT", OPTION_TEXT, AT(text), .absent = "none",
     .help = "answers follow this grammar (GBNF)", .one_of = "the grammar"},
    {"--grammar-file", NULL, "FILE", OPTION_TEXT, AT(file), .absent = "none",
     .help = "the same, read from a file", .one_of = "the grammar"},
    {"--json-schema", "-j", "JSON", OPTION_TEXT, AT(schema), .absent = "none",
     .help = "answers are JSON that this schema allows; @FILE reads it from a file",
     .one_of = "the grammar"},
    {"--json-schema-file", "-jf", "FILE", OPTION_TEXT, AT(schema_file), .absent = "none",
     .help = "the same, read from a file", .one_of = "the grammar"},
    {0},
};
#undef AT

#define AT(member) .offset = offsetof(struct prompt_options, member)
const struct option prompt_option_table[] = {
    {"--prompt", "-p", "TEXT", OPTION_TEXT, AT(text), .absent = "standard input",
     .help = "the text", .one_of = "the text"},
    {"--file", "-f", "FILE", OPTION_TEXT, AT(file), .absent = "",
     .help = "read the text from a file; - is standard input", .one_of = "the text"},
    {"--escape", "-e", NULL, OPTION_FLAG, AT(escape),
     .help = "read \\n, \\t, \\\\, \\xHH in the text as the characters that they stand for",
     .negative = "--no-escape"},
    {"--parse-special", NULL, NULL, OPTION_FLAG, AT(parse_special),
     .help = "read the names of special tokens in the text as those tokens"},
    {"--no-bos", NULL, NULL, OPTION_FLAG, AT(no_bos),
     .help = "do not add the tokens that the model wants around a text"},
    {0},
};
#undef AT

#define AT(member) .offset = offsetof(struct chat_options, member)
const struct option chat_option_table[] = {
    {"--chat-template", NULL, "NAME", OPTION_TEXT, AT(template_name), .absent = "the model's own",
     .help = "how messages become a prompt: chatml, llama3, ...", .env = "LLAMA_ARG_CHAT_TEMPLATE",
     .one_of = "the template", .with = "--chat"},
    {"--chat-template-file", NULL, "FILE", OPTION_TEXT, AT(template_file), .absent = "none",
     .help = "the same, as a Jinja template of your own", .env = "LLAMA_ARG_CHAT_TEMPLATE_FILE",
     .one_of = "the template", .with = "--chat"},
    {"--system", "-sys", "TEXT", OPTION_TEXT, AT(system), .absent = "none",
     .help = "the system message", .also = "--system-prompt", .one_of = "the system message",
     .with = "--chat"},
    {"--system-file", "-sysf", "FILE", OPTION_TEXT, AT(system_file), .absent = "none",
     .help = "the same, read from a file", .also = "--system-prompt-file",
     .one_of = "the system message", .with = "--chat"},
    {"--no-thinking", NULL, NULL, OPTION_FLAG, AT(no_thinking),
     .help = "ask a reasoning model to answer at once", .with = "--chat"},
    {0},
};
#undef AT

void memory_options_default(struct memory_options *o)
{
    pith_engine_params p;
    pith_engine_params_default(&p);
    *o = (struct memory_options){.chunk = p.chunk, .type_k = p.type_k, .type_v = p.type_v};
}

void sample_options_default(struct sample_options *o)
{
    *o = (struct sample_options){0};
    pith_sample_params_default(&o->params);
}

/* ---- params ---- */

/* "15043+1.5", "2-inf". */
static bool parse_bias(const char *text, pith_logit_bias *out)
{
    char *end;
    errno = 0;
    long id = strtol(text, &end, 10);
    if (end == text || errno != 0 || id < 0 || id > INT32_MAX || (*end != '+' && *end != '-'))
        return false;
    const char *value = end;
    double bias = strtod(value, &end);
    if (end == value || *end != '\0' || isnan(bias))
        return false;
    *out = (pith_logit_bias){(int32_t)id, (float)bias};
    return true;
}

pith_sample_params sample_params(const struct sample_options *o, pith_logit_bias **bias)
{
    pith_sample_params p = o->params;
    *bias = cli_alloc((size_t)o->bias.n, sizeof(**bias));
    for (int32_t i = 0; i < o->bias.n; i++)
        if (!parse_bias(o->bias.text[i], &(*bias)[i]))
            cli_fail_usage("--logit-bias: \"%s\" is not a token and its bias, as 15043+1 or 2-inf",
                           o->bias.text[i]);
    p.bias = *bias;
    p.n_bias = o->bias.n;
    if (p.top_k < 0) /* llama.cpp's word for all */
        p.top_k = 0;
    p.seed = o->seed >= 0 ? (uint64_t)o->seed : (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
    return p;
}

void sample_check(const pith_sample_params *p, const pith_model *model)
{
    pith_model_info info;
    pith_model_get_info(model, &info);
    for (int32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].token >= info.n_vocab)
            cli_fail_usage("--logit-bias: token %d is not between 0 and %d", p->bias[i].token,
                           info.n_vocab - 1);
}

pith_grammar *load_grammar(const struct grammar_options *o, const pith_model *model)
{
    pith_grammar *grammar = NULL;
    pith_error err;
    struct cli_text file = {0};
    bool is_schema = o->schema != NULL || o->schema_file != NULL;
    const char *text = o->schema != NULL ? o->schema : o->text;
    const char *path = o->schema_file != NULL ? o->schema_file : o->file;
    if ((o->text != NULL) + (o->file != NULL) + (o->schema != NULL) + (o->schema_file != NULL) > 1)
        cli_fail_usage("--grammar, --grammar-file, --json-schema and --json-schema-file: only one "
                       "of them can hold");
    if (o->schema != NULL && text[0] == '@')
        path = text + 1;
    if (text == NULL && path == NULL)
        return NULL;
    if (path != NULL) {
        file = cli_read_file(path);
        text = file.data;
    }
    size_t len = file.data != NULL ? file.len : strlen(text);
    pith_status status =
        is_schema ? pith_grammar_create_json_schema(model, text, len, NULL, &grammar, &err)
                  : pith_grammar_create_gbnf(model, text, len, NULL, &grammar, &err);
    if (status == PITH_INVALID || status == PITH_UNSUPPORTED)
        cli_fail("%s: %s",
                 o->schema != NULL        ? "--json-schema"
                 : o->schema_file != NULL ? "--json-schema-file"
                 : o->text != NULL        ? "--grammar"
                                          : "--grammar-file",
                 err.message);
    cli_check(status, &err);
    free(file.data);
    return grammar;
}

/* The text of a policy that wants statistics, with a name for them: they are not read yet. */
static const char *with_stats(const char *keep)
{
    static char text[1024];
    if (!budget_wants_stats(keep))
        return keep;
    snprintf(text, sizeof(text), "%s%cstats=-", keep, strchr(keep, ':') != NULL ? ',' : ':');
    return text;
}

pith_engine_params engine_params(const struct model_options *m, const struct memory_options *o)
{
    pith_engine_params p;
    pith_error err;
    int64_t number;
    if (o->keep != NULL && options_parse_long(o->keep, &number))
        cli_fail_usage("--keep: %s is no policy: llama.cpp keeps that number of the prompt's "
                       "tokens, which here is --keep streaming:sinks=%s",
                       o->keep, o->keep);
    if (pith_store_check(o->type_k, o->type_v, &err) != PITH_OK) /* "type_k: ..." */
        cli_fail_usage("--cache-type-%s", err.message + strlen("type_"));
    if (o->kv != NULL)
        (void)budget_parse(o->kv);
    if (o->kv != NULL && ranks_several())
        cli_fail_usage("--kv %s: over ranks -c or --kv-memory size the KV memory", o->kv);
    if (o->kv != NULL && o->kv_bytes > 0)
        cli_fail_usage("--kv %s and --kv-memory %lld both size the KV memory: give one", o->kv,
                       (long long)o->kv_bytes);
    if (pith_policy_check(PITH_KEEP, with_stats(o->keep), &err) != PITH_OK)
        cli_fail_usage("--%s", err.message);
    if (pith_policy_check(PITH_READ, o->read, &err) != PITH_OK)
        cli_fail_usage("--%s", err.message);
    if (pith_policy_check(PITH_RECALL, o->recall, &err) != PITH_OK)
        cli_fail_usage("--%s", err.message);
    if (pith_policy_check(PITH_SHARE, o->share, &err) != PITH_OK)
        cli_fail_usage("--%s", err.message);
    session_check_device(m);
    if (o->n_ctx > 0 && o->kv_bytes > 0)
        cli_fail_usage("-c %d and --kv-memory %lld both size the KV memory: give one", o->n_ctx,
                       (long long)o->kv_bytes);
    pith_engine_params_default(&p);
    p.n_thread = m->n_thread;
    session_place(m, &p);
    p.memory_bytes = o->kv_bytes;
    p.kv_tokens = o->n_ctx;
    p.page_len = o->page_len != NULL ? atoi(o->page_len) : 0;
    p.chunk = o->chunk;
    p.type_k = o->type_k;
    p.type_v = o->type_v;
    p.keep = o->keep;
    p.read = o->read;
    p.recall = o->recall;
    p.share = o->share;
    return p;
}

int64_t disk_bytes(void)
{
    FILE *file = fopen("/proc/self/io", "r");
    long long value = -1;
    char line[128];
    while (file != NULL && value < 0 && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "read_bytes:", 11) == 0 && sscanf(line + 11, "%lld", &value) != 1)
            break;
    if (file != NULL)
        fclose(file);
    return value;
}

/* ---- session ---- */

double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_warning(void *user, pith_log_level level, const char *line)
{
    (void)user;
    if (level == PITH_LOG_WARN)
        cli_note("warning: %s", line);
}

void session_set_level(const struct model_options *o)
{
    pith_error err;
    session_check_device(o);
    if (o->cpu_level != NULL)
        cli_check(pith_cpu_level_set(o->cpu_level, &err), &err);
}

void session_load(struct session *s, const struct model_options *o, bool vocab_only)
{
    pith_error err;
    pith_log_set(print_warning, NULL);
    session_set_level(o);
    if (!vocab_only)
        ranks_divide(o->split, o->ranks);
    s->path = models_resolve(o);
    if (s->path == NULL)
        cli_fail_usage("-m FILE is missing: the model, a GGUF file; -hf names one of a hub");
    outputs_check_input(s->path);
    const char *slash = strrchr(s->path, '/');
    char what[128];
    snprintf(what, sizeof(what), "loading %.80s, packing its weights",
             slash != NULL ? slash + 1 : s->path);
    struct cli_progress progress = {.what = what, .on = cli_progress_wanted()};
    pith_model_params params;
    pith_model_params_default(&params);
    params.n_ctx = s->n_ctx;
    params.vocab_only = vocab_only;
    params.n_thread = o->n_thread;
    params.cache_weights = o->cache_weights;
    params.on_demand = !vocab_only && session_uses_gpu(o);
    params.progress = cli_progress_step;
    params.progress_user = &progress;
    double start = clock_s();
    pith_status status = pith_model_load(s->path, &params, &s->model, &err);
    cli_progress_end(&progress);
    if (status == PITH_CANCELLED)
        cli_exit(EXIT_INTERRUPTED);
    cli_check(status, &err);
    s->load_s = clock_s() - start;
    s->disk_seen = disk_bytes();
    pith_model_get_info(s->model, &s->info);
}

/* A message that names the field of the engine names the option that gave it. */
static void check_engine(const struct session *s, pith_status status, const pith_error *err)
{
    static const char field[] = "memory_bytes: ";
    if (status == PITH_INVALID && s->kv_memory > 0 &&
        strncmp(err->message, field, sizeof(field) - 1) == 0)
        cli_fail("--kv-memory: %s", err->message + sizeof(field) - 1);
    cli_check(status, err);
}

/* With a bar while weights are packed for a GPU. */
static void start_engine(struct session *s, const pith_engine_params *params, bool uses_gpu)
{
    pith_error err;
    struct cli_progress bar = {.what = "packing weights for the GPU",
                               .on = uses_gpu && cli_progress_wanted()};
    pith_engine_params p = *params;
    p.progress = cli_progress_step;
    p.progress_user = &bar;
    pith_status status = pith_engine_create(s->model, &p, &s->engine, &err);
    cli_progress_end(&bar);
    if (status == PITH_CANCELLED)
        cli_exit(EXIT_INTERRUPTED);
    check_engine(s, status, &err);
}

void session_start(struct session *s, const struct model_options *m, const struct memory_options *o,
                   int64_t most_tokens)
{
    pith_error err;
    pith_engine_params p = engine_params(m, o);
    s->params = p;
    s->keep = p.keep;
    s->read = p.read;
    s->recall = p.recall;
    s->share = p.share;
    if (!s->no_bar)
        p.on_advance = cli_progress_read;
    if (p.kv_tokens == 0 && p.memory_bytes == 0) {
        int64_t pages, whole, n = most_tokens > 0 ? most_tokens : s->info.n_ctx_train;
        if (n > INT32_MAX)
            n = INT32_MAX;
        cli_check(pith_kv_estimate(s->model, &p, n, &pages, &err), &err);
        cli_check(pith_memory_estimate(s->model, &p, n, &whole, &err), &err);
        if (s->least_pages > pages) {
            whole += s->least_pages - pages;
            pages = s->least_pages;
        }
        int64_t most = session_room(s->model, m);
        s->kv_limited = most > 0 && whole > most;
        if (s->kv_limited)
            p.memory_bytes = most;
        else
            p.kv_bytes = pages;
    }
    s->kv_memory = o->kv_bytes > 0 ? o->kv_bytes + s->draft_bytes : 0;
    s->params = p;
    start_engine(s, &p, session_uses_gpu(m));
    pith_kv_stats kv;
    pith_engine_kv_stats(s->engine, &kv);
    s->page_len = kv.page_len;
    cli_check(pith_seq_create(s->engine, &s->seq, &err), &err);
}

/* The value of the file's ARCHITECTURE.rope.scaling.type; "none". */
static const char *rope_scaling(const struct session *s, char *buf, size_t cap)
{
    char wanted[128];
    const char *key;
    snprintf(wanted, sizeof(wanted), "%s.rope.scaling.type", s->info.architecture);
    for (int64_t i = 0; pith_model_meta(s->model, i, &key, NULL, buf, cap) == PITH_OK; i++)
        if (strcmp(key, wanted) == 0)
            return buf;
    return "none";
}

void session_note_context(struct session *s, int64_t n_token)
{
    char scaling[64];
    if (s->told_context || n_token <= s->info.n_ctx_train || s->info.n_ctx_train <= 0)
        return;
    s->told_context = true;
    cli_note("a context of %lld tokens is longer than the %d of the model's training (rope base "
             "%g, scaling %s): answers to later positions are unknown",
             (long long)n_token, s->info.n_ctx_train, (double)s->info.rope_theta,
             rope_scaling(s, scaling, sizeof(scaling)));
}

void session_resize(struct session *s, int64_t memory_bytes)
{
    pith_error err;
    bool had_seq = s->seq != NULL;
    pith_seq_free(s->seq);
    pith_engine_free(s->engine);
    s->seq = NULL;
    s->engine = NULL;
    s->params.memory_bytes = memory_bytes;
    check_engine(s, pith_engine_create(s->model, &s->params, &s->engine, &err), &err);
    if (had_seq)
        cli_check(pith_seq_create(s->engine, &s->seq, &err), &err);
}

void session_free(struct session *s)
{
    pith_seq_free(s->seq);
    pith_engine_free(s->engine);
    pith_engine_free(s->draft_engine); /* sequences of the other draft by it */
    pith_model_free(s->draft_model);
    pith_model_free(s->model);
    free(s->path);
    free(s->stats);
    free(s->keep_text);
    free(s->read_text);
    free(s->share_text);
    *s = (struct session){0};
}

void session_check(pith_status status, const pith_error *err)
{
    if (status == PITH_KV_FULL)
        cli_fail("the tokens do not fit the KV memory, which -c, --kv or --kv-memory size: %s",
                 err->message);
    cli_check(status, err);
}

/* ---- tokens ---- */

struct cli_ids session_tokenize(const pith_model *model, const char *text, size_t len,
                                uint32_t flags)
{
    pith_error err;
    if (len > INT32_MAX - 16)
        cli_fail("the text has %zu bytes, more than can be tokens", len);
    int32_t cap = (int32_t)len + 16; /* usually enough: few tokens are shorter than a byte */
    struct cli_ids ids = {.data = cli_alloc((size_t)cap, sizeof(int32_t))};
    pith_status status = pith_tokenize(model, text, len, flags, ids.data, cap, &ids.n, &err);
    if (status == PITH_RANGE) {
        cap = ids.n;
        free(ids.data);
        ids.data = cli_alloc((size_t)cap, sizeof(int32_t));
        status = pith_tokenize(model, text, len, flags, ids.data, cap, &ids.n, &err);
    }
    cli_check(status, &err);
    return ids;
}

struct cli_text prompt_read(const struct prompt_options *o)
{
    struct cli_text text;
    if (o->text != NULL && o->file != NULL)
        cli_fail_usage("-p and -f both give the text (-f %s): give one", o->file);
    if (o->text != NULL) {
        text = (struct cli_text){strdup(o->text), strlen(o->text)};
        if (text.data == NULL)
            cli_fail("no memory for %zu bytes of text", text.len);
    } else {
        if (o->file == NULL && cli_is_terminal(STDIN_FILENO))
            cli_fail_usage("no text: give -p TEXT, -f FILE or standard input");
        text = cli_read_file(o->file != NULL ? o->file : "-");
    }
    if (o->escape) {
        struct cli_text plain = cli_unescape(text.data, text.len);
        free(text.data);
        text = plain;
    }
    return text;
}

uint32_t prompt_flags(const struct prompt_options *o)
{
    return (o->no_bos ? 0 : PITH_TOKENIZE_BOS) | (o->parse_special ? PITH_TOKENIZE_SPECIAL : 0);
}

struct cli_ids ids_parse(const char *what, const char *text, int32_t n_vocab)
{
    static const char between[] = ", \t\r\n[]";
    size_t cap = strlen(text) / 2 + 1; /* a digit and a separator each */
    struct cli_ids ids = {.data = cli_alloc(cap, sizeof(int32_t))};
    for (const char *at = text + strspn(text, between); *at != '\0'; at += strspn(at, between)) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || errno != 0 || (*end != '\0' && strchr(between, *end) == NULL))
            cli_fail_usage("%s: \"%.20s\" is not a token id", what, at);
        if (id < 0 || id >= n_vocab)
            cli_fail_usage("%s: token id %lld is not between 0 and %d", what, id, n_vocab - 1);
        ids.data[ids.n++] = (int32_t)id;
        at = end;
    }
    return ids;
}
