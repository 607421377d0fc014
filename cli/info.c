/*
 * info.c - `pith info`: what is in a model file, and what its KV memory will cost.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "ranks.h"
#include "session.h"
#include "pith/inspect.h"
#include "pith/policy.h"
#include "pith/ranks.h"

struct options {
    struct model_options model;
    bool verbose;
    bool json;
    int64_t memory;
    const char *page_len;
};

#define VALUE_CAP 4096 /* bytes of a metadata value as text; the library abridges arrays */

static const char *const page_lens[] = {"16", "32", "64", NULL};
#define MOST_TYPES 16

/* Pairs with other types in the first and last layers that are worth a look. */
static const struct edge_pair {
    const char *type_k;
    const char *type_v;
} edge_pairs[] = {
    {"q8_0", "turbo3:q8_0=2+2"},
    {"q8_0", "turbo2:q8_0=2+2"},
    {"q8_0", "turbo2:turbo4=2+2"},
};
#define N_EDGE_PAIR (sizeof(edge_pairs) / sizeof(edge_pairs[0]))

#define AT(member) .offset = offsetof(struct options, member)
static const struct option table[] = {
    {"--verbose", "-v", NULL, OPTION_FLAG, AT(verbose), .help = "list the tensors too"},
    {"--json", NULL, NULL, OPTION_FLAG, AT(json), .help = "print JSON"},
    {"--memory", NULL, "SIZE", OPTION_BYTES, AT(memory), .min = 1, .max = 0x1p62,
     .absent = "the available memory", .help = "memory for weights and KV, as 8GiB"},
    {"--page", NULL, "N", OPTION_CHOICE, AT(page_len), .choices = page_lens,
     .help = "tokens of a page of KV memory"},
    {0},
};
#undef AT

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct options, model)},
    {"Output", table, 0},
    LLAMA_GROUP,
    {0},
};

static void defaults(void *options)
{
    struct options *o = options;
    pith_engine_params p;
    pith_engine_params_default(&p);
    o->page_len = page_lens[p.page_len == 16 ? 0 : p.page_len == 32 ? 1 : 2];
}

/* The settings that the costs are computed for. */
struct kv_plan {
    const struct options *o;
    const pith_model *model;
    const pith_model_info *info;
    int64_t memory;
    const char *types[MOST_TYPES]; /* [n_type] all that there are */
    size_t n_type;
    double f16;     /* bytes per token with f16 for both */
    int64_t window; /* the widest of the layers' */
    int64_t state;  /* bytes of the state that recurrent layers have of a sequence */
};

/* The KV memory of a model with one pair of storage types. */
struct kv_cost {
    bool possible;      /* the types fit the head size */
    int64_t page_bytes; /* of one page of every lane that grows */
    int64_t constant;   /* bytes of the lanes that do not: windows, filled */
    double per_token;   /* bytes, whole pages shared out */
    double factor;      /* f16 for both takes this many times as much */
    int64_t fits;       /* tokens in the memory that the weights leave */
};

static struct kv_cost kv_cost(const struct kv_plan *plan, const char *type_k, const char *type_v)
{
    pith_engine_params p;
    struct kv_cost cost = {0};
    pith_engine_params_default(&p);
    p.page_len = atoi(plan->o->page_len);
    p.type_k = type_k;
    p.type_v = type_v;
    /* Windows are full where a text is longer, by more than what is read at once. */
    int64_t n_page = (plan->window + p.chunk) / p.page_len + 2, more;
    if (pith_kv_estimate(plan->model, &p, n_page * p.page_len, &cost.constant, NULL) != PITH_OK ||
        pith_kv_estimate(plan->model, &p, (n_page + 1) * p.page_len, &more, NULL) != PITH_OK)
        return cost;
    cost.possible = true;
    cost.page_bytes = more - cost.constant;
    cost.constant -= n_page * cost.page_bytes;
    cost.per_token = (double)cost.page_bytes / p.page_len;
    cost.factor = plan->f16 / cost.per_token;
    /* A vocabulary-only load packs no weights; the tensors' bytes in the file are close. */
    int64_t left = plan->memory - plan->info->file_bytes - cost.constant;
    cost.fits = left > 0 && cost.page_bytes > 0 ? left / cost.page_bytes * p.page_len : 0;
    return cost;
}

static struct kv_plan kv_plan(const struct options *o, const struct session *s, int64_t memory)
{
    struct kv_plan plan = {.o = o, .model = s->model, .info = &s->info, .memory = memory};
    pith_store_info type;
    while (plan.n_type < MOST_TYPES && pith_store_type((int32_t)plan.n_type, &type) == PITH_OK)
        plan.types[plan.n_type++] = type.name;
    pith_engine_params p;
    pith_engine_params_default(&p);
    if (s->info.n_layer > 0 && pith_kv_estimate(s->model, &p, 0, &plan.state, NULL) != PITH_OK)
        plan.state = 0;
    pith_layer_info layer;
    for (int32_t l = 0; pith_model_layer(s->model, l, &layer) == PITH_OK; l++)
        plan.window = layer.window > plan.window ? layer.window : plan.window;
    if (s->info.n_layer > 0)
        plan.f16 = kv_cost(&plan, "f16", "f16").per_token;
    return plan;
}

/* Query heads that share a KV head. */
static int32_t heads_per_kv(const pith_model_info *i)
{
    return i->n_head_kv > 0 ? i->n_head / i->n_head_kv : 0;
}

/* ---- text ---- */

/* The numbers of layers with a property that only some have. */
struct layer_counts {
    int32_t n_window, window; /* window: the widest */
    int32_t n_unrotated, n_other_base;
    float base; /* of the last of those */
};

static struct layer_counts count_layers(const pith_model *model, const pith_model_info *i)
{
    struct layer_counts n = {0};
    pith_layer_info layer;
    for (int32_t l = 0; pith_model_layer(model, l, &layer) == PITH_OK; l++) {
        bool other = layer.n_rot > 0 && layer.base != i->rope_theta;
        n.n_window += layer.window > 0;
        n.window = layer.window > n.window ? layer.window : n.window;
        n.n_unrotated += layer.lanes >= 0 && layer.n_rot == 0;
        n.n_other_base += other;
        n.base = other ? layer.base : n.base;
    }
    return n;
}

static void print_layers(const pith_model *model, const pith_model_info *i)
{
    struct layer_counts n = count_layers(model, i);
    if (n.n_window > 0)
        printf("windows       %d of %d layers see %d tokens at most\n", n.n_window, i->n_layer,
               n.window);
    if (n.n_unrotated > 0)
        printf("unrotated     %d of %d layers\n", n.n_unrotated, i->n_layer);
    if (n.n_other_base > 0)
        printf("local rope    %d of %d layers, base %g\n", n.n_other_base, i->n_layer,
               (double)n.base);
}

/* Where values are parts of keys: the dimension that they begin at. */
static int32_t value_begin(const pith_model *model)
{
    pith_attention_info a;
    pith_model_get_attention(model, &a);
    return a.v_in_k;
}

/* Latent attention. */
static void print_latent(const pith_model *model, const pith_model_info *i)
{
    if (value_begin(model) > 0)
        printf("latent        a lane a layer, of %d rotated dimensions and %d for keys and values "
               "alike\n",
               value_begin(model), i->head_dim_v);
}

static void print_shape(const pith_model *model, const struct kv_plan *plan)
{
    const pith_model_info *i = plan->info;
    char bytes[32];
    printf("name          %s\n", i->name[0] != '\0' ? i->name : "-");
    printf("architecture  %s\n", i->architecture);
    printf("parameters    %lld\n", (long long)i->n_param);
    printf("file          %s, mostly %s\n", cli_bytes(i->file_bytes, bytes), i->file_type);
    printf("tokenizer     %s, %d tokens\n", i->tokenizer, i->n_vocab);
    printf("layers        %d, width %d", i->n_layer, i->n_embd);
    if (i->n_ff > 0)
        printf(", feed-forward %d", i->n_ff);
    putchar('\n');
    if (plan->state > 0)
        printf("recurrent     %d of the layers, with a state of %s a sequence; %d have attention\n",
               i->n_layer - i->n_layer_kv, cli_bytes(plan->state, bytes), i->n_layer_kv);
    if (i->n_expert > 0)
        printf("experts       %d of width %d, %d for a token%s\n", i->n_expert, i->n_ff_expert,
               i->n_expert_used, i->n_ff_shared > 0 ? " and one that takes every token" : "");
    if (i->token_bytes > 0)
        printf("reads         %s of weights for a token\n", cli_bytes(i->token_bytes, bytes));
    printf("heads         %d, %d for KV, of %d (K) and %d (V)\n", i->n_head, i->n_head_kv,
           i->head_dim_k, i->head_dim_v);
    print_latent(model, i);
    print_layers(model, i);
    char stages[512];
    if (session_stages_of(model, &plan->o->model, stages, sizeof(stages)))
        printf("runs on       %s\n", stages);
    printf("context       %d tokens, rope %d dimensions at base %g\n", i->n_ctx_train, i->n_rot,
           (double)i->rope_theta);
}

enum cell { CELL_BYTES, CELL_FACTOR, CELL_FITS };

static void print_cell(const struct kv_cost *c, enum cell cell)
{
    if (!c->possible)
        printf(" %10s", "-");
    else if (cell == CELL_BYTES)
        printf(" %10.1f", c->per_token);
    else if (cell == CELL_FACTOR)
        printf(" %10.2f", c->factor);
    else
        printf(" %10lld", (long long)c->fits);
}

/* One number for each pair: K down, V across. */
static void print_pairs(const struct kv_plan *plan, enum cell cell)
{
    printf("  %-7s", "K \\ V");
    for (size_t v = 0; v < plan->n_type; v++)
        printf(" %10s", plan->types[v]);
    putchar('\n');
    for (size_t k = 0; k < plan->n_type; k++) {
        printf("  %-7s", plan->types[k]);
        for (size_t v = 0; v < plan->n_type; v++) {
            struct kv_cost c = kv_cost(plan, plan->types[k], plan->types[v]);
            print_cell(&c, cell);
        }
        putchar('\n');
    }
}

/* The storage types that the rule of keys chooses for this model, and other types at its edges. */
static void print_rules(const struct kv_plan *plan)
{
    int32_t n = heads_per_kv(plan->info);
    if (n >= PITH_SHARED_KEYS)
        printf("\n%d query heads share a KV head: turbo keys become q8_0, in these tables, too; "
               "TYPE:force keeps them.\n",
               n);
    else
        printf("\n%d query head%s a KV head: turbo keys stay; from %d on they become q8_0.\n", n,
               n == 1 ? " has" : "s share", PITH_SHARED_KEYS);
    for (size_t i = 0; i < N_EDGE_PAIR; i++) {
        struct kv_cost c = kv_cost(plan, edge_pairs[i].type_k, edge_pairs[i].type_v);
        if (c.possible)
            printf("  -ctk %s -ctv %-18s %10.1f bytes/token, %5.2f times less, %lld tokens fit\n",
                   edge_pairs[i].type_k, edge_pairs[i].type_v, c.per_token, c.factor,
                   (long long)c.fits);
    }
}

static void print_kv(const struct kv_plan *plan)
{
    char bytes[32];
    if (plan->info->n_layer == 0)
        return;
    printf("\nKV memory in bytes/token%s, in pages of %s tokens, by the types of K and V:\n",
           plan->state > 0 ? " of the layers with attention" : "", plan->o->page_len);
    print_pairs(plan, CELL_BYTES);
    if (plan->window > 0)
        printf("Beside that, full windows of f16 take %s.\n",
               cli_bytes(kv_cost(plan, "f16", "f16").constant, bytes));
    printf("\n"
           "How much smaller than f16 for both:\n");
    print_pairs(plan, CELL_FACTOR);
    printf(
        "\nTokens whose pages fit beside the weights in %s, less what buffers and tables take:\n",
        cli_bytes(plan->memory, bytes));
    print_pairs(plan, CELL_FITS);
    print_rules(plan);
}

static void print_meta(const pith_model *model)
{
    char *value = cli_alloc(VALUE_CAP, 1);
    printf("\nMetadata:\n");
    for (int64_t i = 0; i < pith_model_meta_count(model); i++) {
        const char *key, *type;
        if (pith_model_meta(model, i, &key, &type, value, VALUE_CAP) != PITH_OK)
            continue;
        /* As JSON writes it, so that newlines and control characters stay visible. */
        json_t *text = cli_json_text(value, strlen(value));
        char *line = text != NULL ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
        if (line == NULL)
            cli_fail("no memory for the metadata");
        size_t len = strlen(line) - 2; /* without the quotes */
        int shown = len > 100 ? 100 : (int)len;
        printf("  %-42s %-14s %.*s%s\n", key, type, shown, line + 1, len > 100 ? "..." : "");
        free(line);
        json_decref(text);
    }
    free(value);
}

static void format_shape(const pith_tensor_info *t, char *buf, size_t cap)
{
    size_t len = 0;
    buf[0] = '\0';
    for (int32_t d = 0; d < t->n_dim && len < cap; d++)
        len += (size_t)snprintf(buf + len, cap - len, "[%lld]", (long long)t->dim[d]);
}

static void print_tensors(const pith_model *model)
{
    char shape[96];
    pith_tensor_info t;
    printf("\nTensors:\n");
    for (int64_t i = 0; pith_model_tensor(model, i, &t) == PITH_OK; i++) {
        format_shape(&t, shape, sizeof(shape));
        printf("  %-36s %-6s %-24s %lld bytes\n", t.name, t.type, shape, (long long)t.bytes);
    }
}

/* ---- JSON ---- */

static json_t *json_shape(const pith_model *model, const struct kv_plan *plan)
{
    const pith_model_info *i = plan->info;
    struct layer_counts n = count_layers(model, i);
    return json_pack("{s:o, s:o, s:I, s:I, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, "
                     "s:i, s:f, s:i, s:i, s:i, s:i, s:I}",
                     "name", cli_json_text(i->name, strlen(i->name)), "architecture",
                     cli_json_text(i->architecture, strlen(i->architecture)), "n_param",
                     (json_int_t)i->n_param, "file_bytes", (json_int_t)i->file_bytes, "file_type",
                     i->file_type, "tokenizer", i->tokenizer, "n_vocab", (int)i->n_vocab, "n_layer",
                     (int)i->n_layer, "n_embd", (int)i->n_embd, "n_ff", (int)i->n_ff, "n_head",
                     (int)i->n_head, "n_head_kv", (int)i->n_head_kv, "head_dim_k",
                     (int)i->head_dim_k, "head_dim_v", (int)i->head_dim_v, "n_ctx_train",
                     (int)i->n_ctx_train, "n_rot", (int)i->n_rot, "rope_theta",
                     (double)i->rope_theta, "n_layer_window", (int)n.n_window, "window",
                     (int)n.window, "n_layer_unrotated", (int)n.n_unrotated, "n_layer_kv",
                     (int)i->n_layer_kv, "state_bytes", (json_int_t)plan->state);
}

static void json_add_pair(json_t *list, const struct kv_plan *plan, const char *type_k,
                          const char *type_v)
{
    struct kv_cost c = kv_cost(plan, type_k, type_v);
    if (c.possible)
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:f, s:f, s:I}", "type_k", type_k, "type_v",
                                        type_v, "bytes_per_token", c.per_token, "times_less",
                                        c.factor, "fits_tokens", (json_int_t)c.fits));
}

static json_t *json_kv(const struct kv_plan *plan)
{
    json_t *list = json_array();
    for (size_t k = 0; plan->info->n_layer > 0 && k < plan->n_type; k++)
        for (size_t v = 0; v < plan->n_type; v++)
            json_add_pair(list, plan, plan->types[k], plan->types[v]);
    return list;
}

static json_t *json_edges(const struct kv_plan *plan)
{
    json_t *list = json_array();
    for (size_t i = 0; plan->info->n_layer > 0 && i < N_EDGE_PAIR; i++)
        json_add_pair(list, plan, edge_pairs[i].type_k, edge_pairs[i].type_v);
    return list;
}

static json_t *json_meta(const pith_model *model)
{
    json_t *list = json_array();
    char *value = cli_alloc(VALUE_CAP, 1);
    for (int64_t i = 0; i < pith_model_meta_count(model); i++) {
        const char *key, *type;
        if (pith_model_meta(model, i, &key, &type, value, VALUE_CAP) != PITH_OK)
            continue;
        json_t *entry = json_object();
        json_object_set_new(entry, "key", cli_json_text(key, strlen(key)));
        json_object_set_new(entry, "type", json_string(type));
        json_object_set_new(entry, "value", cli_json_text(value, strlen(value)));
        json_array_append_new(list, entry);
    }
    free(value);
    return list;
}

static json_t *json_tensors(const pith_model *model)
{
    json_t *list = json_array();
    pith_tensor_info t;
    for (int64_t i = 0; pith_model_tensor(model, i, &t) == PITH_OK; i++) {
        json_t *entry = json_object(), *shape = json_array();
        for (int32_t d = 0; d < t.n_dim; d++)
            json_array_append_new(shape, json_integer(t.dim[d]));
        json_object_set_new(entry, "name", cli_json_text(t.name, strlen(t.name)));
        json_object_set_new(entry, "type", json_string(t.type));
        json_object_set_new(entry, "shape", shape);
        json_object_set_new(entry, "bytes", json_integer(t.bytes));
        json_array_append_new(list, entry);
    }
    return list;
}

/* ---- over ranks ---- */

/* The ranks of --ranks, which has their number or their weights: *n_rank, and what each would have.
   The caller's; NULL where nothing is said of ranks. */
static pith_ranks_plan *plan_ranks(const struct session *s, const struct model_options *o,
                                   int32_t *n_rank)
{
    pith_error err;
    int32_t weight[RANKS_MOST], n = o->ranks != NULL ? ranks_weights(o->ranks, weight) : 1;
    *n_rank = n > 1 || o->ranks == NULL ? n : weight[0];
    if (*n_rank > RANKS_MOST)
        cli_fail_usage("--ranks: %d are more than %d", *n_rank, RANKS_MOST);
    if (*n_rank == 1)
        return NULL;
    pith_ranks_info as = {
        .n_rank = *n_rank, .weight = n > 1 ? weight : NULL, .split = ranks_split(o->split)};
    pith_ranks_plan *plans = cli_alloc((size_t)*n_rank, sizeof(*plans));
    for (; as.rank < as.n_rank; as.rank++)
        cli_check(pith_ranks_estimate(s->path, &as, &plans[as.rank], &err), &err);
    return plans;
}

static void print_ranks(const pith_ranks_plan *plans, int32_t n_rank)
{
    char weights[32], kv[32], state[32], sent[32];
    printf("\nOver %d ranks, with keys and values in f16:\n\n", n_rank);
    printf("  %-5s %8s %8s %12s %12s %12s %14s\n", "rank", "layers", "KV heads", "weights",
           "KV a token", "a state", "sends a token");
    for (int32_t r = 0; r < n_rank; r++) {
        const pith_ranks_plan *p = &plans[r];
        char layers[32];
        snprintf(layers, sizeof(layers), "%d-%d", p->first_layer, p->first_layer + p->n_layer - 1);
        printf("  %-5d %8s %8d %12s %12s %12s %14s\n", r, layers, p->n_head_kv,
               cli_bytes(p->weight_bytes, weights), cli_bytes(p->kv_token_bytes, kv),
               p->state_bytes > 0 ? cli_bytes(p->state_bytes, state) : "-",
               cli_bytes(p->sent_token_bytes, sent));
    }
}

static json_t *json_ranks(const pith_ranks_plan *plans, int32_t n_rank)
{
    json_t *list = json_array();
    for (int32_t r = 0; r < n_rank; r++) {
        const pith_ranks_plan *p = &plans[r];
        json_array_append_new(list, json_pack("{s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I}", "rank", r,
                                              "first_layer", p->first_layer, "n_layer", p->n_layer,
                                              "n_head_kv", p->n_head_kv, "weight_bytes",
                                              (json_int_t)p->weight_bytes, "kv_token_bytes",
                                              (json_int_t)p->kv_token_bytes, "state_bytes",
                                              (json_int_t)p->state_bytes, "sent_token_bytes",
                                              (json_int_t)p->sent_token_bytes));
    }
    return list;
}

static int run(void *options)
{
    const struct options *o = options;
    struct session s = {0};
    session_load(&s, &o->model, true);
    int32_t n_rank;
    pith_ranks_plan *ranks = plan_ranks(&s, &o->model, &n_rank); /* before anything is printed */
    int64_t memory = o->memory > 0 ? o->memory : available_memory(&o->model);
    struct kv_plan plan = kv_plan(o, &s, memory);
    if (o->json) {
        json_t *out = json_shape(s.model, &plan);
        json_object_set_new(out, "n_expert", json_integer(s.info.n_expert));
        json_object_set_new(out, "n_expert_used", json_integer(s.info.n_expert_used));
        json_object_set_new(out, "n_ff_expert", json_integer(s.info.n_ff_expert));
        json_object_set_new(out, "n_ff_shared", json_integer(s.info.n_ff_shared));
        json_object_set_new(out, "token_bytes", json_integer(s.info.token_bytes));
        json_object_set_new(out, "v_in_k", json_integer(value_begin(s.model)));
        json_object_set_new(out, "memory_bytes", json_integer(memory));
        json_object_set_new(out, "kv", json_kv(&plan));
        json_object_set_new(out, "kv_edges", json_edges(&plan));
        json_object_set_new(out, "heads_per_kv_head", json_integer(heads_per_kv(&s.info)));
        json_object_set_new(out, "metadata", json_meta(s.model));
        if (ranks != NULL)
            json_object_set_new(out, "ranks", json_ranks(ranks, n_rank));
        if (o->verbose)
            json_object_set_new(out, "tensors", json_tensors(s.model));
        cli_json_print(out, JSON_INDENT(1));
    } else {
        print_shape(s.model, &plan);
        print_kv(&plan);
        if (ranks != NULL)
            print_ranks(ranks, n_rank);
        print_meta(s.model);
        if (o->verbose)
            print_tensors(s.model);
    }
    free(ranks);
    session_free(&s);
    return EXIT_SUCCESS;
}

const struct command command_info = {
    .name = "info",
    .summary = "show the content of a model file and the cost of its KV memory",
    .synopsis = "MODEL [-v] [--memory 8GiB]",
    .notes = "The weights are not loaded. Tokens that fit are a whole number of pages.",
    .groups = groups,
    .options_size = sizeof(struct options),
    .defaults = defaults,
    .run = run,
};
