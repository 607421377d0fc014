/*
 * policies_matrix.c - `pith policies --matrix`: docs/combinations.md. It knows no policy and no
 * rule: rows and columns are what the library lists, and each cell is what pith_policies_fit says.
 * Sentences that differ in a policy's name alone are one, with the verb in capitals for the name.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io.h"
#include "options.h"
#include "pith/policy.h"
#include "policies.h"

#define PART_MAX 64
#define SENTENCE_MAX 64
#define CELL_SIZE 24

enum { KIND_TYPE = PITH_N_VERB, KIND_USE };

/* A row or a column: a policy of a verb, a storage type, or a use. */
struct part {
    int kind;        /* a pith_verb, KIND_TYPE or KIND_USE */
    char name[32];   /* of the policy or type; "none": no policy */
    char value[256]; /* of its option: the name, and the file that it cannot do without */
    char title[48];
    pith_use use;
};

struct parts {
    struct part at[PART_MAX];
    size_t n;
};

struct matrix {
    char sentence[SENTENCE_MAX][sizeof(((pith_error *)0)->message)];
    size_t n_sentence;
};

static struct part *add(struct parts *parts, int kind, const char *name, const char *title)
{
    if (parts->n == PART_MAX)
        cli_fail("more than %d policies in a table", PART_MAX);
    struct part *p = &parts->at[parts->n++];
    *p = (struct part){.kind = kind, .use = PITH_USE_EVALUATE};
    snprintf(p->name, sizeof(p->name), "%s", name);
    snprintf(p->value, sizeof(p->value), "%s", name);
    snprintf(p->title, sizeof(p->title), "%s", title);
    return p;
}

/* All policies of a verb; with its option before their names where it is. */
static void add_verb(struct parts *parts, pith_verb verb, bool with_option)
{
    pith_policy_info info;
    for (int32_t i = 0; pith_policy_get(verb, i, &info) == PITH_OK; i++) {
        char title[48];
        snprintf(title, sizeof(title), "%s%s%s%s", with_option ? "--" : "",
                 with_option ? pith_verb_name(verb) : "", with_option ? " " : "", info.name);
        struct part *p = add(parts, (int)verb, info.name, title);
        if (info.file[0] != '\0') /* "key=FILE, which ..." */
            snprintf(p->value, sizeof(p->value), "%s:%.*s", info.name, (int)strcspn(info.file, ","),
                     info.file);
    }
}

/* The types of keys and values, and keys without their mean. */
static void add_types(struct parts *parts, bool with_option)
{
    pith_store_info info;
    for (int32_t i = 0; pith_store_type(i, &info) == PITH_OK; i++) {
        char title[48];
        snprintf(title, sizeof(title), "%s%s", with_option ? "-ctk, -ctv " : "", info.name);
        add(parts, KIND_TYPE, info.name, title);
    }
    add(parts, KIND_TYPE, "f16:centre", with_option ? "-ctk f16:centre" : "centre");
}

static void add_uses(struct parts *parts)
{
    static const struct {
        pith_use use;
        const char *title;
    } uses[] = {{PITH_USE_PREFIX, "prefixes"},     {PITH_USE_FORK, "forks"},
                {PITH_USE_SWAP, "swaps"},          {PITH_USE_FILE, "saved files"},
                {PITH_USE_DRAFT, "drafts"},        {PITH_USE_RANKS_ROWS, "rows"},
                {PITH_USE_RANKS_LAYERS, "layers"}, {PITH_USE_RANKS_LATENT, "latent"}};
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++)
        add(parts, KIND_USE, "", uses[i].title)->use = uses[i].use;
}

/* ---- a cell ---- */

static void apply(const struct part *p, pith_engine_params *params, pith_use *use)
{
    const char **fields[] = {[PITH_KEEP] = &params->keep,
                             [PITH_READ] = &params->read,
                             [PITH_RECALL] = &params->recall,
                             [PITH_SHARE] = &params->share};
    if (p->kind == KIND_USE) {
        *use = p->use;
    } else if (p->kind == KIND_TYPE) {
        params->type_k = p->value;
        if (strchr(p->value, ':') == NULL) /* centre is for keys */
            params->type_v = p->value;
    } else {
        *fields[p->kind] = p->value;
    }
}

/* Puts the verb in capitals wherever the text has the verb and then the part's name. */
static void replace_name(char *text, size_t cap, const struct part *p)
{
    char old[64], copy[256];
    if (p->kind != PITH_KEEP && p->kind != PITH_READ && p->kind != PITH_SHARE)
        return;
    const char *verb = pith_verb_name((pith_verb)p->kind);
    for (int i = 0; i < 2; i++) {
        size_t len =
            (size_t)snprintf(old, sizeof(old), "%s%s%s", verb, i == 0 ? " " : ": ", p->name);
        size_t before = len - strlen(p->name);
        char *at = strstr(text, old);
        if (at == NULL || isalnum((unsigned char)at[len]))
            continue;
        snprintf(copy, sizeof(copy), "%s", at + len);
        at += before;
        size_t left = cap - (size_t)(at - text);
        snprintf(at, left, "%s%s", verb, copy);
        for (size_t k = 0; k < strlen(verb) && k < left; k++)
            at[k] = (char)toupper((unsigned char)at[k]);
    }
}

/* The sentence's number, from 1. */
static size_t number_of(struct matrix *m, const char *sentence)
{
    for (size_t i = 0; i < m->n_sentence; i++)
        if (strcmp(m->sentence[i], sentence) == 0)
            return i + 1;
    if (m->n_sentence == SENTENCE_MAX)
        cli_fail("more than %d sentences in a table", SENTENCE_MAX);
    snprintf(m->sentence[m->n_sentence], sizeof(m->sentence[0]), "%s", sentence);
    return ++m->n_sentence;
}

/* Recall needs a keep policy: where none is asked for, the first that there is. */
static const char *some_keep(void)
{
    pith_policy_info info;
    return pith_policy_get(PITH_KEEP, 0, &info) == PITH_OK ? info.name : NULL;
}

static void fill_cell(struct matrix *m, const struct part *row, const struct part *column,
                      char *out)
{
    pith_engine_params params;
    pith_use use = PITH_USE_EVALUATE;
    pith_error said;
    pith_engine_params_default(&params);
    apply(row, &params, &use);
    apply(column, &params, &use);
    if (row->kind == PITH_RECALL)
        params.keep = some_keep();
    bool works = pith_policies_fit(&params, use, &said) == PITH_OK;
    replace_name(said.message, sizeof(said.message), row);
    replace_name(said.message, sizeof(said.message), column);
    if (works && said.message[0] == '\0')
        snprintf(out, CELL_SIZE, "yes");
    else
        snprintf(out, CELL_SIZE, "%s %zu", works ? "note" : "no", number_of(m, said.message));
}

/* ---- a table ---- */

static void print_row(const char *const *cells, const size_t *width, size_t n)
{
    for (size_t i = 0; i < n; i++)
        printf("%s%-*s", i == 0 ? "| " : " | ", (int)width[i], cells[i]);
    printf(" |\n");
}

static void print_rule(const size_t *width, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        printf("|");
        for (size_t k = 0; k < width[i] + 2; k++)
            putchar('-');
    }
    printf("|\n");
}

static void print_table(struct matrix *m, const char *corner, const struct parts *rows,
                        const struct parts *columns)
{
    static char cells[PART_MAX][PART_MAX][CELL_SIZE];
    size_t width[PART_MAX + 1] = {strlen(corner)}, n = columns->n + 1;
    const char *line[PART_MAX + 1] = {corner};
    for (size_t j = 0; j < columns->n; j++) {
        line[j + 1] = columns->at[j].title;
        width[j + 1] = strlen(line[j + 1]);
    }
    for (size_t i = 0; i < rows->n; i++) {
        size_t len = strlen(rows->at[i].title);
        width[0] = len > width[0] ? len : width[0];
        for (size_t j = 0; j < columns->n; j++) {
            fill_cell(m, &rows->at[i], &columns->at[j], cells[i][j]);
            len = strlen(cells[i][j]);
            width[j + 1] = len > width[j + 1] ? len : width[j + 1];
        }
    }
    print_row(line, width, n);
    print_rule(width, n);
    for (size_t i = 0; i < rows->n; i++) {
        line[0] = rows->at[i].title;
        for (size_t j = 0; j < columns->n; j++)
            line[j + 1] = cells[i][j];
        print_row(line, width, n);
    }
}

/* ---- the page ---- */

static void print_head(void)
{
    printf(
        "# What goes with what\n"
        "\n"
        "This page is what `pith policies --matrix` prints. A cell is the engine's answer to both\n"
        "together, each with its default options and the file that it needs:\n"
        "\n"
        "- `yes`: both work;\n"
        "- `note N`: they do, and sentence N below is to be known;\n"
        "- `no N`: they do not, and sentence N says why.\n"
        "\n"
        "In sentences KEEP, READ and SHARE stand for the policy's name. Other options can change\n"
        "a cell. A pair can be used for what both of its parts can.\n");
}

/* Where a GPU works, and where the host does. */
static void print_gpu(void)
{
    static const char *const head[] = {"--keep", "rounds", "notes", "steps"};
    pith_policy_info info;
    size_t width[] = {strlen(head[0]), strlen(head[1]), strlen(head[2]), strlen(head[3])};
    for (int32_t i = 0; pith_policy_get(PITH_KEEP, i, &info) == PITH_OK; i++)
        width[0] = strlen(info.name) > width[0] ? strlen(info.name) : width[0];
    printf(
        "\n## Keep on a GPU\n\n"
        "`GPU`: the GPU scores the entries of a round and chooses which go (rounds). It notes\n"
        "attention's weights beside entries (notes), and finds the entry that a step overwrites\n"
        "(steps). `host`: the host does it with numbers that it downloads, which is slower. `-`:\n"
        "the policy asks for no weights, or its steps overwrite nothing. The GPU moves the\n"
        "entries that stay, whatever the policy.\n\n");
    print_row(head, width, 4);
    print_rule(width, 4);
    for (int32_t i = 0; pith_policy_get(PITH_KEEP, i, &info) == PITH_OK; i++) {
        const char *const cells[] = {info.name, (info.gpu & PITH_GPU_ROUNDS) != 0 ? "GPU" : "host",
                                     (info.gpu & PITH_ASKS_NOTES) == 0  ? "-"
                                     : (info.gpu & PITH_GPU_NOTES) != 0 ? "GPU"
                                                                        : "host",
                                     (info.gpu & PITH_ASKS_STEPS) == 0  ? "-"
                                     : (info.gpu & PITH_GPU_STEPS) != 0 ? "GPU"
                                                                        : "host"};
        print_row(cells, width, 4);
    }
}

/* Lists the files that default options lack. */
static void print_files(void)
{
    pith_policy_info info;
    printf("\n## Files that policies need\n\n");
    for (int verb = 0; verb < PITH_N_VERB; verb++)
        for (int32_t i = 0; pith_policy_get((pith_verb)verb, i, &info) == PITH_OK; i++)
            if (info.file[0] != '\0')
                printf("- `--%s %s` needs %s.\n", pith_verb_name((pith_verb)verb), info.name,
                       info.file);
}

static void print_sentences(const struct matrix *m)
{
    printf("\n## Sentences\n\n");
    for (size_t i = 0; i < m->n_sentence; i++) {
        size_t indent = (size_t)printf("%zu. ", i + 1);
        help_print_wrapped(m->sentence[i], indent, indent);
    }
}

void policies_print_matrix(void)
{
    static struct matrix m;
    static struct parts keeps, reads, others, types, uses, rest;
    add(&keeps, PITH_KEEP, "none", "none");
    add_verb(&keeps, PITH_KEEP, false);
    add_verb(&reads, PITH_READ, false);
    add_verb(&others, PITH_RECALL, true);
    add_verb(&others, PITH_SHARE, true);
    add_types(&types, false);
    add_uses(&uses);
    add_verb(&rest, PITH_READ, true);
    add_verb(&rest, PITH_RECALL, true);
    add_verb(&rest, PITH_SHARE, true);
    add_types(&rest, true);
    print_head();
    printf("\n## Keep and read\n\n");
    print_table(&m, "--keep", &keeps, &reads);
    printf("\n## Keep, recall and share\n\n");
    print_table(&m, "--keep", &keeps, &others);
    printf("\n## Keep and storage types\n\n"
           "A type is that of keys and values; `centre` is `-ctk f16:centre`.\n\n");
    print_table(&m, "--keep", &keeps, &types);
    printf(
        "\n## Keep, and what sequences are used for\n\n"
        "A scheduler begins a sequence with pages that others have read (prefixes), and takes the\n"
        "memory of one for another, which goes on later (swaps). Drafted tokens are evaluated\n"
        "together, and those that do not come true are taken back (drafts). Models with recurrent\n"
        "layers have no drafts, either.\n\n"
        "Several ranks divide a model by `rows` or by `layers` "
        "([distributed.md](distributed.md)).\n"
        "`latent` is by rows, of models with latent attention. Ranks save no files, either.\n\n");
    print_table(&m, "--keep", &keeps, &uses);
    printf("\n## All others, and what sequences are used for\n\n"
           "Recall is here with `--keep %s`.\n\n",
           some_keep());
    print_table(&m, "option", &rest, &uses);
    print_gpu();
    print_files();
    print_sentences(&m);
}
