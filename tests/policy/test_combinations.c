/*
 * test_combinations.c - docs/combinations.md cell by cell. Cells that work are run with pith-nano,
 * and cells that are refused give the page's sentence. Policies have budgets that a short text goes
 * beyond, so that each of them acts. PITH_CELL picks cells by a part of their title, as
 * "triattention x quoka", or as "3/40" every 40th of a table, from the third on.
 */
#define _POSIX_C_SOURCE 200809L
#include "testing.h"

#include <stdlib.h>
#include <unistd.h>

#include "pith/policy.h"
#include "draft_rig.h"
#include "scheduler_rig.h"

#define PAGE PITH_SOURCE_DIR "/docs/combinations.md"

enum { N_PROMPT = 100, N_STEP = 24, N_SAID = 6, N_CELL = 32 };

/* ---- the page ---- */

static char *lines[400];
static int32_t n_line;
static char sentence[64][256];

static void read_page(void)
{
    char line[400];
    FILE *f = fopen(PAGE, "r");
    int32_t number = 0;
    bool listed = false;
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        assert_true(n_line < (int32_t)PI_LEN(lines));
        lines[n_line++] = strdup(line);
        listed = listed || strcmp(line, "## Sentences") == 0;
        int at = 0;
        if (listed && sscanf(line, "%d. %n", &number, &at) == 1) {
            assert_true(number > 0 && number < (int32_t)PI_LEN(sentence));
            snprintf(sentence[number], sizeof(sentence[0]), "%s", line + at);
        } else if (listed && number > 0 && line[0] == ' ') {
            size_t len = strlen(sentence[number]);
            snprintf(sentence[number] + len, sizeof(sentence[0]) - len, " %s",
                     line + strspn(line, " "));
        }
    }
    fclose(f);
}

/* Cuts "| a | b |" into its cells; returns their number. */
static int32_t cut(const char *line, char cells[N_CELL][64])
{
    int32_t n = 0;
    for (const char *at = line + 1, *end; (end = strchr(at, '|')) != NULL; at = end + 1) {
        assert_true(n < N_CELL);
        at += strspn(at, " ");
        size_t len = (size_t)(end - at);
        while (len > 0 && at[len - 1] == ' ')
            len--;
        snprintf(cells[n++], 64, "%.*s", (int)len, at);
    }
    return n;
}

/* ---- options ---- */

/* Options that make a policy act on short texts, beside the options of its verb. */
static const char *const more[][3] = {
    {"keep", "adakv", "budget=64,slack=8,window=8,queries=8"},
    {"keep", "snapkv", "budget=64,slack=8,window=8,queries=8"},
    {"keep", "pyramidkv", "budget=64,slack=8,window=8,queries=8"},
    {"keep", "lazyeviction", "budget=64,slack=8,window=8"},
    {"keep", "longflow", "budget=64,slack=8,prompt-window=8"},
    {"keep", "rkv", "budget=64,slack=8,window=8,queries=8"},
    {"keep", "kvzip", "budget=64,slack=8,window=8"},
    {"keep", "kvzap", "budget=64,slack=8,window=8"},
    {"keep", "raas", "budget=112,slack=4"}, /* both hold their prompt */
    {"keep", "triattention", "budget=112,slack=4"},
    {"keep", NULL, "budget=64,slack=8"},
    {"read", "lessismore", "budget=24,source=0"}, /* the last layer of three has none behind it */
    {"read", "tidaldecode", "budget=24,source=0"},
    {"read", "quest", "budget=24,dense-layers=0"},
    {"read", "sparq", "budget=24,r=8"},
    {"read", NULL, "budget=24,chunk=16,gate=1"},
    {"recall", "kv", "take=6,last=8,ram=4MiB"},
    {"share", "memshare", "step=0.1,block=100,relative=2"},
    {"share", NULL, "share=0.5"},
};

static char stats_path[64], basis_path[64];

/* "NAME:options" of a policy; a text that is the caller's. */
static void option(pith_verb verb, const char *name, char *out, size_t cap)
{
    pith_policy_info policy;
    const char *v = pith_verb_name(verb), *options = NULL;
    for (size_t i = 0; options == NULL && i < PI_LEN(more); i++)
        if (strcmp(v, more[i][0]) == 0 && (more[i][1] == NULL || strcmp(name, more[i][1]) == 0))
            options = more[i][2];
    snprintf(out, cap, "%s%s%s", name, options != NULL ? ":" : "", options != NULL ? options : "");
    for (int32_t i = 0; pith_policy_get(verb, i, &policy) == PITH_OK; i++)
        if (strcmp(policy.name, name) == 0 && policy.file[0] != '\0') { /* "key=FILE, which ..." */
            size_t len = strlen(out);
            snprintf(out + len, cap - len, ",%.*s%s", (int)strcspn(policy.file, "F"), policy.file,
                     verb == PITH_KEEP ? stats_path : basis_path);
        }
}

/* The policies and results of a cell. */
struct cell {
    char text[4][160]; /* by verb */
    const char *value[4];
    char type[64];
    pith_use use;
    const char *says; /* "yes", "note N", "no N" */
    const char *why;  /* sentence N; "" for yes */
    char title[160];
};

static void set_use(struct cell *c, const char *title)
{
    static const char *const titles[PITH_N_USE] = {
        "",       "prefixes", "forks",  "swaps", "saved files",
        "drafts", "rows",     "layers", "latent"}; /* by pith_use */
    for (int use = 0; use < PITH_N_USE; use++)
        if (strcmp(title, titles[use]) == 0)
            c->use = (pith_use)use;
    assert_int_not_equal(c->use, PITH_USE_EVALUATE);
}

static void set_type(struct cell *c, const char *name)
{
    snprintf(c->type, sizeof(c->type), "%s", strcmp(name, "centre") == 0 ? "f16:centre" : name);
}

static void set_policy(struct cell *c, const char *verb, const char *name)
{
    int v = 0;
    while (v < PITH_N_VERB && strcmp(verb, pith_verb_name((pith_verb)v)) != 0)
        v++;
    assert_true(v < PITH_N_VERB);
    if (strcmp(name, "none") == 0)
        return;
    option((pith_verb)v, name, c->text[v], sizeof(c->text[v]));
    c->value[v] = c->text[v];
}

/* A row's or a column's title: "--read quoka", "-ctk, -ctv f32", or a name, whose kind the table's
   heading tells. */
static void set_part(struct cell *c, const char *title, const char *kind)
{
    char verb[16], name[64];
    if (sscanf(title, "--%15s %63s", verb, name) == 2)
        set_policy(c, verb, name);
    else if (strncmp(title, "-ctk", 4) == 0)
        set_type(c, strrchr(title, ' ') + 1);
    else if (strcmp(kind, "use") == 0)
        set_use(c, title);
    else if (strcmp(kind, "type") == 0)
        set_type(c, title);
    else
        set_policy(c, kind, title);
}

static pith_engine_params params_of(const struct cell *c)
{
    pith_engine_params params;
    pith_engine_params_default(&params);
    params.n_gpu_layers = test_gpu_layers();
    params.chunk = 64;
    params.n_thread = 1;
    params.kv_tokens = 1200;
    params.page_len = PAGE_LEN;
    params.keep = c->value[PITH_KEEP];
    params.read = c->value[PITH_READ];
    params.recall = c->value[PITH_RECALL];
    params.share = c->value[PITH_SHARE];
    if (c->type[0] != '\0')
        params.type_k = c->type;
    if (c->type[0] != '\0' && strchr(c->type, ':') == NULL)
        params.type_v = c->type;
    return params;
}

/* ---- the uses ---- */

static int32_t line_end; /* a token, which sequences say twice in eight: steps end there */

static int32_t next_of(const pith_seq *seq)
{
    const float *logits = pith_seq_logits(seq);
    int32_t best = 0;
    assert_non_null(logits);
    for (int32_t i = 0; i < info.n_vocab; i++) {
        assert_true(logits[i] == logits[i]);
        if (logits[i] > logits[best])
            best = i;
    }
    return pith_seq_length(seq) % 8 >= 6 ? line_end : best;
}

/* Tokens [from, to) of the sequence's output. */
static void say(pith_seq *seq, int32_t from, int32_t to, int32_t *said)
{
    for (int32_t i = from; i < to; i++) {
        said[i] = next_of(seq);
        check(pith_seq_eval(seq, &said[i], 1, &err), &err);
    }
}

static pith_seq *read_prompt(pith_engine *e)
{
    pith_seq *seq = seq_make(e);
    check(pith_seq_mark_prompt(seq, N_PROMPT, &err), &err);
    check(pith_seq_eval(seq, tokens, N_PROMPT, &err), &err);
    return seq;
}

static void expect_said(const struct cell *c, const int32_t *a, const int32_t *b, int32_t from)
{
    for (int32_t i = from; i < N_STEP; i++)
        if (a[i] != b[i])
            fail_msg("%s: token %d is %d instead of %d", c->title, i, b[i], a[i]);
}

/* Reads, generates, and sees that each policy did something. */
static void evaluate(const struct cell *c, pith_engine *e)
{
    int32_t said[N_STEP];
    pith_keep_stats keep;
    pith_read_stats read;
    pith_recall_stats recall;
    pith_share_stats share;
    pith_seq *seq = read_prompt(e);
    say(seq, 0, N_STEP, said);
    pith_seq_keep_stats(seq, &keep);
    pith_seq_read_stats(seq, &read);
    pith_seq_recall_stats(seq, &recall);
    pith_seq_share_stats(seq, &share);
    if (c->value[PITH_KEEP] != NULL && keep.rounds + keep.overwritten == 0)
        fail_msg("%s: nothing was evicted", c->title);
    if (c->value[PITH_READ] != NULL && read.sparse == 0)
        fail_msg("%s: everything was read", c->title);
    if (c->value[PITH_RECALL] != NULL && recall.stored == 0)
        fail_msg("%s: nothing was remembered", c->title);
    if (c->value[PITH_SHARE] != NULL && share.steps_closed == 0)
        fail_msg("%s: there was no step", c->title);
    pith_seq_free(seq);
}

/* The second request begins as the first does. */
static void share_prefix(const struct cell *c, pith_engine *e)
{
    static struct ask first, second;
    static struct heard alone;
    bool takes = strncmp(c->says, "no ", 3) != 0;
    ask_init(&first, 0, N_PROMPT, 4, 0.0f);
    ask_init(&second, 0, N_PROMPT - 10, N_STEP, 0.0f);
    generate_alone(e, &second, 0, &alone);
    pith_scheduler *s = scheduler_make(e, NULL);
    submit(s, &first);
    run_all(s);
    submit(s, &second);
    run_all(s);
    expect_same(&second.answer[0], &alone, c->title);
    int32_t n = second.answer[0].result.n_cached;
    if (takes != (n >= PAGE_LEN))
        fail_msg("%s: %d tokens were there already", c->title, n);
    pith_scheduler_free(s);
}

static void fork_in_two(const struct cell *c, pith_engine *e)
{
    int32_t alone[N_STEP], a[N_STEP], b[N_STEP];
    pith_seq *seq = read_prompt(e), *fork = NULL;
    say(seq, 0, N_STEP, alone);
    pith_seq_free(seq);
    seq = read_prompt(e);
    say(seq, 0, N_SAID, a);
    memcpy(b, a, sizeof(a));
    check(pith_seq_fork(seq, &fork, &err), &err);
    for (int32_t i = N_SAID; i < N_STEP; i++) { /* by turns: shared pages are copied */
        say(fork, i, i + 1, b);
        say(seq, i, i + 1, a);
    }
    expect_said(c, alone, a, 0);
    expect_said(c, alone, b, 0);
    pith_seq_free(seq);
    pith_seq_free(fork);
}

/* Two requests, of which one has to give way again and again. */
static void preempt(const struct cell *c, pith_engine *e)
{
    static struct ask asks[2];
    static struct heard alone[2];
    pith_scheduler_params params;
    pith_scheduler_params_default(&params);
    params.max_preempt = 1000;
    for (int32_t i = 0; i < 2; i++) {
        ask_init(&asks[i], 150 * i, N_PROMPT, N_STEP, 0.0f);
        generate_alone(e, &asks[i], 0, &alone[i]);
    }
    pith_scheduler *s = scheduler_make(e, &params);
    for (int32_t i = 0; i < 2; i++)
        submit(s, &asks[i]);
    int32_t n = 0;
    for (bool idle = false; !idle; n++) {
        check(pith_scheduler_step(s, &idle, &err), &err);
        for (int32_t i = 0; i < 3 && !idle && n % 6 == 5; i++)
            scheduler_relieve(s, NULL, s->kv_bytes);
    }
    for (int32_t i = 0; i < 2; i++)
        expect_same(&asks[i].answer[0], &alone[i], c->title);
    pith_scheduler_stats t = stats_of_scheduler(s);
    bool again = strstr(c->why, "read again") != NULL, stays = strstr(c->why, "stays") != NULL;
    if (again && (t.preempted_recompute == 0 || t.preempted_swap > 0))
        fail_msg("%s: %lld were swapped", c->title, (long long)t.preempted_swap);
    if (!again && !stays && t.preempted_swap == 0)
        fail_msg("%s: none was swapped", c->title);
    if (stays && t.preempted_recompute > 0)
        fail_msg("%s: %lld were read again", c->title, (long long)t.preempted_recompute);
    pith_scheduler_free(s);
}

static void save_and_load(const struct cell *c, pith_engine *e)
{
    int32_t said[N_STEP], again[N_STEP];
    char path[] = "/tmp/pith-cells-XXXXXX";
    pith_engine_params params = params_of(c);
    pith_engine *other = NULL;
    pith_seq *seq = read_prompt(e), *loaded = NULL;
    close(mkstemp(path));
    say(seq, 0, N_SAID, said);
    check(pith_seq_save(seq, path, &err), &err);
    say(seq, N_SAID, N_STEP, said);
    check(pith_engine_create(model, &params, &other, &err), &err);
    check(pith_seq_load(other, path, &loaded, &err), &err);
    unlink(path);
    if (pith_seq_logits(loaded) == NULL) { /* the file has none: its last token once more */
        check(pith_seq_eval(loaded, &said[N_SAID], 1, &err), &err);
        again[N_SAID] = said[N_SAID];
        say(loaded, N_SAID + 1, N_STEP, again);
    }
    if (strncmp(c->why, "recall:", 7) != 0 && strncmp(c->why, "share:", 6) != 0)
        expect_said(c, said, again, N_SAID);
    pith_seq_free(loaded);
    pith_seq_free(seq);
    pith_engine_free(other);
}

/* Random tokens, with drafts of all lengths and without. */
static void draft_tokens(const struct cell *c, pith_engine *e)
{
    static struct told plain, drafted;
    int32_t *ids[2];
    pith_generate_params params;
    pith_draft_params draft;
    pith_draft_params_default(&draft);
    draft.always = true;
    draft.n_max = 5;
    pith_generate_params_default(&params);
    params.n_predict = N_STEP;
    params.ignore_end = true;
    params.sample.temperature = 0.0f;
    tell_all(e, tokens, N_PROMPT, &params, &plain, &ids[0]);
    params.draft = &draft;
    tell_all(e, tokens, N_PROMPT, &params, &drafted, &ids[1]);
    expect_told(&plain, ids[0], &drafted, ids[1], c->title);
    if (drafted.result.n_draft == 0)
        fail_msg("%s: nothing was drafted", c->title);
    free(ids[0]);
    free(ids[1]);
}

/* ---- cells ---- */

static void expect_refusal(const struct cell *c, pith_status status, const pith_error *why,
                           const pith_error *expected)
{
    if (status != expected->status || strcmp(why->message, expected->message) != 0)
        fail_msg("%s: \"%s\" instead of \"%s\"", c->title, status != PITH_OK ? why->message : "",
                 expected->message);
}

/* The refusals that the page lists: by the engine, by the scheduler, or by the use itself. */
static void refuse(const struct cell *c, pith_engine *e, const pith_error *expected)
{
    pith_seq *seq = NULL;
    if (c->use == PITH_USE_FILE) {
        seq = read_prompt(e);
        expect_refusal(c, pith_seq_save(seq, "/tmp/pith-never", &err), &err, expected);
        pith_seq_free(seq);
        seq = NULL;
        expect_refusal(c, pith_seq_load(e, "/tmp/pith-never", &seq, &err), &err, expected);
    } else if (c->use == PITH_USE_DRAFT) {
        expect_refusal(c, pith_draft_check(e, NULL, &err), &err, expected);
    } else {
        assert_int_equal(c->use, PITH_USE_PREFIX); /* the only one that does without */
        share_prefix(c, e);
    }
}

static void run_cell(const struct cell *c)
{
    static void (*const runs[PITH_N_USE])(const struct cell *, pith_engine *) = {
        evaluate, share_prefix, fork_in_two, preempt, save_and_load, draft_tokens};
    pith_engine_params params = params_of(c);
    pith_engine *e = NULL;
    pith_error expected;
    pith_status fits = pith_policies_fit(&params, c->use, &expected);
    bool refused = strncmp(c->says, "no ", 3) == 0;
    if (refused != (fits != PITH_OK) || (strcmp(c->says, "yes") == 0) != !expected.message[0])
        fail_msg("%s: the page says %s, Pith \"%s\"", c->title, c->says, expected.message);
    if (c->use >= PITH_USE_RANKS_ROWS) /* test_cli_ranks_policies has several ranks */
        return;
    pith_status status = pith_engine_create(model, &params, &e, &err);
    if (refused && status != PITH_OK)
        expect_refusal(c, status, &err, &expected);
    else if (refused)
        refuse(c, e, &expected);
    else if (status != PITH_OK)
        fail_msg("%s: %s", c->title, err.message);
    else
        runs[c->use](c, e);
    pith_engine_free(e);
}

/* Whether cell i of a table is one of those that PITH_CELL asks for. */
static bool is_asked(const char *title, int32_t i)
{
    const char *only = getenv("PITH_CELL");
    int first, step;
    if (only == NULL)
        return true;
    if (sscanf(only, "%d/%d", &first, &step) == 2)
        return step > 0 && i % step == first;
    return strstr(title, only) != NULL;
}

/* All cells of the table behind a heading. Recall needs a keep policy. */
static void run_table(const char *heading, const char *row_kind, const char *column_kind)
{
    char head[N_CELL][64], row[N_CELL][64];
    int32_t at = 0, n_cell = 0, n_run = 0;
    while (at < n_line && strcmp(lines[at], heading) != 0)
        at++;
    while (at < n_line && lines[at][0] != '|')
        at++;
    assert_true(at < n_line);
    int32_t n = cut(lines[at], head);
    for (at += 2; lines[at][0] == '|'; at++) {
        assert_int_equal(cut(lines[at], row), n);
        for (int32_t i = 1; i < n; i++) {
            struct cell c = {.use = PITH_USE_EVALUATE, .says = row[i]};
            set_part(&c, row[0], row_kind);
            set_part(&c, head[i], column_kind);
            if (c.value[PITH_RECALL] != NULL && strcmp(row_kind, "keep") != 0) {
                option(PITH_KEEP, "streaming", c.text[PITH_KEEP], sizeof(c.text[0]));
                c.value[PITH_KEEP] = c.text[PITH_KEEP];
            }
            int number = 0;
            c.why = sscanf(row[i], "%*s %d", &number) == 1 ? sentence[number] : "";
            assert_true(strcmp(row[i], "yes") == 0 || c.why[0] != '\0');
            snprintf(c.title, sizeof(c.title), "%s x %s", row[0], head[i]);
            if (!is_asked(c.title, n_cell++))
                continue;
            run_cell(&c);
            n_run++;
        }
    }
    assert_true(n_run >= 1 && n_cell >= 4 * 21);
}

TEST(keep_and_read_combine_as_the_page_says)
{
    run_table("## Keep and read", "keep", "read");
}

TEST(keep_combines_with_share_and_recall_as_the_page_says)
{
    run_table("## Keep, recall and share", "keep", "");
}

TEST(keep_and_types_combine_as_the_page_says)
{
    run_table("## Keep and storage types", "keep", "type");
}

TEST(keep_allows_the_uses_that_the_page_says)
{
    run_table("## Keep, and what sequences are used for", "keep", "use");
}

TEST(other_verbs_allow_the_uses_that_the_page_says)
{
    run_table("## All others, and what sequences are used for", "", "use");
}

/* ---- before and after ---- */

/* The page's rule for pairs: a pair allows the uses that both parts allow. */
TEST(pairs_allow_the_uses_that_the_page_says)
{
    pith_policy_info keep, other;
    for (int32_t i = 0; pith_policy_get(PITH_KEEP, i, &keep) == PITH_OK; i++)
        for (int v = PITH_READ; v <= PITH_SHARE; v++)
            for (int32_t j = 0; pith_policy_get((pith_verb)v, j, &other) == PITH_OK; j++)
                for (int use = PITH_USE_PREFIX; use < PITH_N_USE; use++) {
                    struct cell both = {0}, with = {0}, alone = {0};
                    option(PITH_KEEP, keep.name, both.text[PITH_KEEP], sizeof(both.text[0]));
                    option((pith_verb)v, other.name, both.text[v], sizeof(both.text[0]));
                    with.value[PITH_KEEP] = both.value[PITH_KEEP] = both.text[PITH_KEEP];
                    alone.value[v] = both.value[v] = both.text[v];
                    alone.value[PITH_KEEP] = v == PITH_RECALL ? "streaming" : NULL;
                    pith_engine_params p = params_of(&both), a = params_of(&with),
                                       b = params_of(&alone);
                    if (pith_policies_fit(&p, PITH_USE_EVALUATE, &err) == PITH_OK)
                        assert_int_equal(pith_policies_fit(&p, (pith_use)use, &err) == PITH_OK,
                                         pith_policies_fit(&a, (pith_use)use, &err) == PITH_OK &&
                                             pith_policies_fit(&b, (pith_use)use, &err) == PITH_OK);
                }
}

/* A policy that names a file does not work without it. */
TEST(policies_that_need_files_say_so)
{
    pith_policy_info policy;
    int32_t n = 0;
    for (int v = PITH_KEEP; v <= PITH_READ; v++)
        for (int32_t i = 0; pith_policy_get((pith_verb)v, i, &policy) == PITH_OK; i++) {
            struct cell c = {0};
            pith_engine *e = NULL;
            option((pith_verb)v, policy.name, c.text[v], sizeof(c.text[v]));
            char *comma = policy.file[0] != '\0' ? strrchr(c.text[v], ',') : NULL;
            if (comma != NULL)
                *comma = '\0';
            c.value[v] = c.text[v];
            pith_engine_params params = params_of(&c);
            pith_status status = pith_engine_create(model, &params, &e, &err);
            assert_int_equal(status != PITH_OK, policy.file[0] != '\0');
            n += status != PITH_OK;
            pith_engine_free(e);
        }
    assert_int_equal(n, 2);
}

static void setup(void)
{
    pith_importance_params p;
    pith_importance_text texts[2] = {{tokens, 96}, {tokens + 200, 96}};
    pith_stats *stats = NULL;
    pith_projection *basis = NULL;
    int32_t n;
    model_load(29);
    read_page();
    check(pith_tokenize(model, "\n", 1, 0, &line_end, 1, &n, &err), &err);
    strcpy(stats_path, "/tmp/pith-cells-XXXXXX");
    strcpy(basis_path, "/tmp/pith-cells-XXXXXX");
    close(mkstemp(stats_path));
    close(mkstemp(basis_path));
    /* The processor makes the files of a few cells: an emulated GPU takes longer for that. */
    struct pi_device *before = pi_device_default();
    if (getenv("PITH_CELL") != NULL)
        pi_device_register(&pi_device_cpu);
    pith_engine *e = engine_make(NULL, 64, 1, 1200);
    pith_importance_params_default(&p);
    p.texts = texts;
    p.n_text = 2;
    check(pith_calibrate_importance(e, &p, &stats, &err), &err);
    check(pith_stats_save(stats, stats_path, &err), &err);
    check(pith_projection_fit(e, tokens, 256, NULL, &basis, &err), &err);
    check(pith_projection_save(basis, basis_path, &err), &err);
    pith_stats_free(stats);
    pith_projection_free(basis);
    pith_engine_free(e);
    pi_device_register(before);
}

static void teardown(void)
{
    unlink(stats_path);
    unlink(basis_path);
    for (int32_t i = 0; i < n_line; i++)
        free(lines[i]);
    model_free();
}

TEST_GROUP(setup, teardown);
