/*
 * test_eval_read.c - read policies in the measuring commands. Every task accepts one and says how
 * much was read, a sweep varies its budgets, and a report names it. A replay shows its choice,
 * which is compared with the formula of QuoKA in double precision.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include <eval.h>
#include <record.h>
#include <report.h>
#include <report_data.h>
#include <results.h>
#include <sweep.h>

#include "eval_read.h"
#include "pith/policy.h"

TEST_GROUP(make_folder, remove_folder);

#define MODEL PITH_SOURCE_DIR "/models/pith-nano.gguf"
#define GOLDEN PITH_SOURCE_DIR "/tests/golden/replay.safetensors"
#define NEEDLE "{\"task\": \"needle\", \"style\": \"pith\", \"lengths\": [160], \"depths\": [0.5]}"
#define SWEEP(policies, budgets, tasks)                                                            \
    "{\"model\": \"" MODEL "\", \"engine\": {\"threads\": 1}, \"policies\": [" policies            \
    "], \"budgets\": " budgets ", \"tasks\": [" tasks "]}"

/* ---- sweeps ---- */

static pith_status sweep(const char *text, char *notes, json_t **table, pith_error *why)
{
    put("s.json", text);
    const struct eval_sweep_params p = {.path = in_folder("s.json"),
                                        .out = in_folder("o.jsonl"),
                                        .fresh = true,
                                        .note = on_note,
                                        .user = notes};
    return eval_sweep(&p, table, why);
}

static struct results read_out(void)
{
    err = (pith_error){0};
    struct results r = {0};
    check(results_read(in_folder("o.jsonl"), &r, &err), &err);
    return r;
}

/* Budgets go to whichever of keep and read names none. */
TEST(budgets_go_to_the_policy_that_names_none)
{
    static const struct {
        const char *policy, *budget, *keep, *read;
    } wanted[] = {
        {"full", NULL, "full", NULL},
        {"q", "16", "full", "quoka:chunk=16,budget=16"},
        {"q", "25%", "full", "quoka:chunk=16,budget=25%"},
        {"both", "16", "streaming:budget=64,slack=8", "quoka:budget=16"},
        {"both", "25%", "streaming:budget=64,slack=8", "quoka:budget=25%"},
        {"thin", "16", "streaming:slack=8,budget=16", "quoka:budget=8"},
        {"thin", "25%", "streaming:slack=8,budget=25%", "quoka:budget=8"},
        {"fixed", NULL, "full", "quoka:budget=1000"},
    };
    enum { N = sizeof(wanted) / sizeof(*wanted) };
    char notes[NOTES_SIZE] = "";
    err = (pith_error){0};
    json_t *table = NULL;
    check(sweep(SWEEP("\"full\", {\"name\": \"q\", \"read\": \"quoka:chunk=16\"}, {\"name\": "
                      "\"both\", \"keep\": \"streaming:budget=64,slack=8\", \"read\": \"quoka\"}, "
                      "{\"name\": \"thin\", \"keep\": \"streaming:slack=8\", \"read\": "
                      "\"quoka:budget=8\"}, {\"name\": \"fixed\", \"read\": \"quoka:budget=1000\"}",
                      "[16, \"25%\"]", NEEDLE),
                notes, &table, &err),
          &err);
    struct results r = read_out();
    const json_t *rows = json_object_get(table, "rows");
    assert_int_equal(json_array_size(rows), N);
    assert_int_equal(json_array_size(r.lines), N);
    for (size_t i = 0; i < N; i++) {
        const json_t *line = json_array_get(r.lines, i), *row = json_array_get(rows, i);
        const char *read = results_text(line, "read"), *budget = results_text(row, "budget");
        assert_string_equal(results_text(row, "policy"), wanted[i].policy);
        assert_string_equal(results_text(line, "policy"), wanted[i].keep);
        assert_true((budget == NULL) == (wanted[i].budget == NULL));
        assert_true((read == NULL) == (wanted[i].read == NULL));
        if (budget != NULL)
            assert_string_equal(budget, wanted[i].budget);
        if (read != NULL)
            assert_string_equal(read, wanted[i].read);
        double share = number(row, "read_share");
        assert_true(share == number(json_object_get(line, "summary"), "read_share"));
        /* Nothing is left out by the full cache, and by a budget that no lane reaches. */
        if (i == 0 || i == N - 1)
            assert_true(share == 1.0);
        else
            assert_true(share > 0.0 && share < 1.0);
    }
    /* A read policy evicts nothing, a keep policy still does. */
    assert_true(number(json_array_get(rows, 1), "evicted") == 0);
    assert_true(number(json_array_get(rows, 3), "evicted") > 0);
    /* A budget that is never reached changes no answer and no score. */
    assert_true(number(json_array_get(rows, N - 1), "score") ==
                number(json_array_get(rows, 0), "score"));
    results_free(&r);
    json_decref(table);
}

TEST(says_what_is_wrong_in_a_sentence)
{
    static const struct {
        const char *policies, *budgets, *word;
    } cases[] = {
        {"{\"name\": \"x\", \"keep\": \"streaming\", \"read\": \"quoka\"}", "[8]",
         "\"x\" keeps and reads without a budget"},
        {"{\"name\": \"x\", \"read\": 3}", "[8]", "are texts"},
        {"{\"name\": \"x\", \"read\": \"qouka\"}", "[8]", "qouka"},
        {"{\"name\": \"x\", \"read\": \"quoka:querys=4\"}", "[8]", "querys"},
        {"{\"name\": \"x\", \"read\": \"quoka\"}", "[\"1MiB\"]", "1048576 bytes"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024], notes[NOTES_SIZE] = "";
        err = (pith_error){0};
        json_t *table = NULL;
        snprintf(text, sizeof(text),
                 "{\"model\": \"" MODEL "\", \"policies\": [%s], \"budgets\": %s, \"tasks\": "
                 "[" NEEDLE "]}",
                 cases[i].policies, cases[i].budgets);
        expect(sweep(text, notes, &table, &err), &err, PITH_INVALID, cases[i].word);
        assert_null(table);
    }
}

/* Every task runs under a read policy and says how much it read; perplexity compares with the full
   cache by itself. */
TEST(every_task_runs_under_a_read_policy)
{
    char notes[NOTES_SIZE] = "", prose[8192] = "";
    err = (pith_error){0};
    json_t *table = NULL, *line;
    size_t i;
    for (int k = 0; k < 60; k++)
        snprintf(prose + strlen(prose), sizeof(prose) - strlen(prose),
                 "The friend of Maria is Omar and the street has %d lamps. ", k);
    put("prose.txt", prose);
    put("q.jsonl", "{\"problem\": \"The friend of Maria is Omar. The way to the lake is long. Who "
                   "is the friend of Maria, and how long is the way?\", \"answer\": \"7\"}\n");
    put("f.jsonl",
        "{\"context\": \"The friend of Maria is Omar. The password of Anna is copper "
        "lantern. The friend of Paul is Nora.\", \"questions\": [{\"ask\": \" The friend "
        "of Maria is\", \"answer\": \" Omar\"}]}\n");
    check(sweep(SWEEP("{\"name\": \"q\", \"read\": \"quoka:budget=8,chunk=8\"}", "[]",
                      NEEDLE
                      ", {\"task\": \"ruler\", \"lengths\": [400], \"samples\": 1, \"tasks\": "
                      "[\"niah_single_1\"]}, {\"task\": \"perplexity\", \"file\": \"prose.txt\", "
                      "\"n_ctx\": 128, \"chunks\": 2}, {\"task\": \"divergence\", \"file\": "
                      "\"prose.txt\", \"n_ctx\": 128, \"chunks\": 2}, {\"task\": \"recursion\", "
                      "\"min_steps\": 6, \"max_steps\": 6, \"samples\": 1, \"predict\": 8}, "
                      "{\"task\": \"derivation\", \"parts\": [4], \"samples\": 1}, {\"task\": "
                      "\"questions\", \"file\": \"q.jsonl\", \"predict\": 8}, {\"task\": "
                      "\"facts\", \"file\": \"f.jsonl\"}, {\"task\": \"kept\", \"file\": "
                      "\"prose.txt\", \"n_ctx\": 96, \"every\": 32}"),
                notes, &table, &err),
          &err);
    if (number(json_object_get(table, "summary"), "failed") != 0)
        fail_msg("%s", notes);
    struct results r = read_out();
    assert_int_equal(json_array_size(r.lines), 9);
    json_array_foreach(r.lines, i, line)
    {
        const json_t *summary = json_object_get(line, "summary");
        double share = number(summary, "read_share");
        assert_string_equal(results_text(line, "read"), "quoka:budget=8,chunk=8");
        assert_true(number(summary, "evicted") == 0);
        if (!(share > 0.0 && share < 1.0))
            fail_msg("%s: a share of %g was read", results_text(line, "task"), share);
    }
    const json_t *paired = json_object_get(json_array_get(r.lines, 2), "summary");
    assert_true(number(paired, "full_perplexity") > 1.0 && number(paired, "diff") != 0.0);
    const json_t *moved = json_object_get(json_array_get(r.lines, 3), "summary");
    assert_true(number(moved, "kl_mean") > 0.0 && number(moved, "top1") < 1.0);
    results_free(&r);
    json_decref(table);
}

/* ---- reports ---- */

TEST(reports_name_policies_and_budgets)
{
    static const struct {
        const char *keep, *read, *recall, *store, *name, *budget;
    } cases[] = {
        {"full", NULL, NULL, NULL, "full", ""},
        {NULL, NULL, NULL, NULL, "full", ""},
        {"streaming:sinks=2,budget=64", NULL, NULL, NULL, "streaming:sinks=2", "64"},
        {"full", "quoka:budget=12.5%", NULL, NULL, "read quoka", "12.5%"},
        {"full", "quoka:pair=token,budget=64", NULL, NULL, "read quoka:pair=token", "64"},
        {"full", "quoka", NULL, NULL, "read quoka", ""},
        {"streaming:budget=2048", "quoka:budget=64", NULL, NULL,
         "streaming:budget=2048, read quoka", "64"},
        {"streaming:budget=2048", "quoka", NULL, NULL, "streaming, read quoka", "2048"},
        {"tova:budget=10%", NULL, "kv:take=25%", NULL, "tova, recall kv:take=25%", "10%"},
        {"full", NULL, NULL, "q8_0/turbo3", "full, q8_0/turbo3", ""},
        {"tova:budget=10%", "quoka", "text", "f16/q8_0", "tova, read quoka, recall text, f16/q8_0",
         "10%"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char name[128];
        struct report_budget budget;
        const struct report_options options = {.keep = cases[i].keep,
                                               .read = cases[i].read,
                                               .recall = cases[i].recall,
                                               .store = cases[i].store};
        report_policy_name(&options, name, sizeof(name), &budget);
        assert_string_equal(name, cases[i].name);
        assert_string_equal(budget.text, cases[i].budget);
    }
}

/* One needle result with the share that was read; share 0: the file does not say. */
static void add_result(FILE *file, const char *read, double share, double score)
{
    fputs("{\"task\":\"needle\",\"model\":\"m\",\"policy\":\"full\",", file);
    if (read != NULL)
        fprintf(file, "\"read\":\"%s\",", read);
    fprintf(file, "\"settings\":{},\"summary\":{\"n\":8,\"score\":%g", score);
    if (share > 0)
        fprintf(file, ",\"read_share\":%g", share);
    fprintf(file, "},\"rows\":[{\"length\":64,\"depth\":0.5,\"n\":8,\"score\":%g}]}\n", score);
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)) != NULL; text++)
        n++;
    return n;
}

TEST(the_page_shows_shares_that_were_read)
{
    err = (pith_error){0};
    struct eval_text page = {0};
    const char *path = in_folder("r.jsonl");
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    add_result(file, NULL, 1.0, 1.0);
    add_result(file, "quoka:budget=12.5%", 0.1875, 0.75);
    add_result(file, "quoka:budget=64", 0.25, 0.5);
    add_result(file, "snapkv:budget=64", 0, 0.25);
    assert_int_equal(fclose(file), 0);
    check(eval_report(&path, 1, &page, NULL, &err), &err);
    /* A line per read policy, and what was read. */
    assert_int_equal(count(page.data, "\"name\":\"read "), 2);
    assert_non_null(strstr(page.data, "\"text\":\"12.5%\""));
    assert_int_equal(count(page.data, "\"read_share\":0.1875"), 2); /* a point and its cell */
    assert_int_equal(count(page.data, "\"read_share\":1.0"), 2);
    eval_text_free(&page);
}

/* ---- replays ---- */

static struct eval_setup setup_of(const char *keep, const char *read)
{
    struct eval_setup setup = {0};
    pith_engine_params_default(&setup.engine);
    setup.engine.keep = keep;
    setup.engine.read = read;
    setup.engine.type_k = setup.engine.type_v = "f32";
    setup.engine.page_len = 16;
    return setup;
}

static pith_status try_replay(const char *keep, const char *read, int32_t at, int32_t n_query,
                              json_t **result, pith_error *why)
{
    const struct eval_setup setup = setup_of(keep, read);
    const struct eval_replay_params params = {
        .path = GOLDEN, .at = &at, .n_at = 1, .n_query = n_query, .n_missing = 5};
    return eval_replay(&setup, &params, result, why);
}

static json_t *replay(const char *keep, const char *read, int32_t at, int32_t n_query)
{
    json_t *result = NULL;
    check(try_replay(keep, read, at, n_query, &result, &err), &err);
    return result;
}

/* Marks positions of "0-3,7"; returns their number. */
static int32_t mark(const char *text, bool *set, int32_t n)
{
    int32_t found = 0;
    for (char *at = (char *)text; *at != '\0'; at += *at == ',') {
        long first = strtol(at, &at, 10), last = first;
        if (*at == '-')
            last = strtol(at + 1, &at, 10);
        assert_true(first >= 0 && first <= last && last < n);
        for (long p = first; p <= last; p++, found++)
            set[p] = true;
    }
    return found;
}

#define AT 40
#define QUERIES 7

/* Rows [begin, begin + n) of an array as double. */
static void load(const struct safetensor *t, int32_t begin, int32_t n, int32_t width, double *out)
{
    assert_true(safetensor_read_f64(t, (int64_t)begin * width, (int64_t)n * width, out));
}

static double length_of(const double *x, int32_t n)
{
    double sum = 0.0;
    for (int32_t d = 0; d < n; d++)
        sum += x[d] * x[d];
    return sqrt(sum);
}

/* Algorithm 1 of QuoKA for a chunk of no more queries than are kept. For each token it takes the
   mean of the group's unit queries and its cosine-like product with every key. It keeps the largest
   over the tokens. */
static void score_by_hand(const struct eval_record *rec, int32_t layer, int32_t head, double *score)
{
    int32_t dim = rec->dim_k, group = rec->n_head / rec->n_head_kv;
    double q[QUERIES * 64], k[AT * 64];
    assert_true(rec->n_head * dim <= 64 && rec->n_head_kv * dim <= 64);
    load(rec->layer[layer].q, AT, QUERIES, rec->n_head * dim, q);
    load(rec->layer[layer].k, 0, AT, rec->n_head_kv * dim, k);
    for (int32_t t = 0; t < AT; t++) {
        const double *key = k + ((size_t)t * (size_t)rec->n_head_kv + (size_t)head) * (size_t)dim;
        score[t] = -INFINITY;
        for (int32_t j = 0; j < QUERIES; j++) {
            double sum = 0.0;
            for (int32_t g = 0; g < group; g++) {
                const double *one =
                    q +
                    ((size_t)j * (size_t)rec->n_head + (size_t)(head * group + g)) * (size_t)dim;
                for (int32_t d = 0; d < dim; d++)
                    sum += one[d] * key[d] / length_of(one, dim);
            }
            score[t] = fmax(score[t], sum / group / length_of(key, dim));
        }
    }
}

TEST(replay_chooses_by_quokas_formula)
{
    enum { BUDGET = 9 };
    struct eval_record rec = {0};
    check(eval_record_open(GOLDEN, &rec, &err), &err);
    json_t *result = replay(NULL, "quoka:budget=9", AT, QUERIES), *row;
    const json_t *rows = json_object_get(result, "rows"),
                 *summary = json_object_get(result, "summary");
    size_t i;
    double mass = 0.0;
    assert_int_equal(json_array_size(rows), rec.n_layer * rec.n_head_kv);
    json_array_foreach(rows, i, row)
    {
        double score[AT], least = INFINITY, most = -INFINITY;
        bool read[AT] = {false}, kept[AT] = {false};
        score_by_hand(&rec, (int32_t)number(row, "layer"), (int32_t)number(row, "head"), score);
        assert_int_equal(mark(results_text(row, "read"), read, AT), BUDGET);
        assert_int_equal(mark(results_text(row, "kept"), kept, AT), AT);
        for (int32_t t = 0; t < AT; t++) {
            least = read[t] ? fmin(least, score[t]) : least;
            most = read[t] ? most : fmax(most, score[t]);
        }
        if (!(least > most))
            fail_msg("row %zu: %.9g was read, and %.9g was not", i, least, most);
        assert_true(number(row, "lost_mass") >= number(row, "lost_mass_best"));
        assert_true(number(row, "lost_mass") > 0.0 && number(row, "output_error") > 0.0);
        mass += number(row, "lost_mass") / (double)json_array_size(rows);
    }
    assert_string_equal(results_text(result, "policy"), "full");
    assert_string_equal(results_text(result, "read"), "quoka:budget=9");
    assert_true(fabs(number(summary, "lost_mass") - mass) < 1e-12);
    assert_true(fabs(number(summary, "read_share") - (double)BUDGET / AT) < 1e-12);
    assert_true(number(summary, "kept_share") == 1.0 && number(summary, "evicted") == 0.0);
    json_decref(result);
    eval_record_close(&rec);
}

/* A read policy chooses among the kept entries. With a budget that is never reached, the result is
   that of the keep policy alone. */
TEST(replay_reads_of_what_is_kept)
{
    const char *keep = "streaming:budget=24,slack=2,sinks=2";
    json_t *both = replay(keep, "quoka:budget=6", AT, QUERIES);
    json_t *alone = replay(keep, NULL, AT, QUERIES),
           *wide = replay(keep, "quoka:budget=500", AT, 7);
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(both, "rows"), i, row)
    {
        bool kept[AT] = {false}, read[AT] = {false};
        const json_t *without = json_array_get(json_object_get(alone, "rows"), i);
        json_t *whole = json_array_get(json_object_get(wide, "rows"), i);
        assert_string_equal(results_text(row, "kept"), results_text(without, "kept"));
        assert_true(mark(results_text(row, "kept"), kept, AT) == (int)number(row, "entries"));
        assert_int_equal(mark(results_text(row, "read"), read, AT), 6);
        for (int32_t t = 0; t < AT; t++)
            assert_true(kept[t] || !read[t]);
        assert_true(number(row, "lost_mass") > number(without, "lost_mass"));
        assert_string_equal(results_text(whole, "read"), results_text(whole, "kept"));
        json_object_del(whole, "read");
        assert_true(json_equal(whole, without));
    }
    json_decref(both);
    json_decref(alone);
    json_decref(wide);
}

/* Every policy that needs no file, one after the other, as alone. */
TEST(replays_every_read_policy)
{
    const char *options[16];
    char text[16][96];
    int32_t n = 0, at = AT;
    pith_policy_info info;
    json_t *all = NULL;
    for (int32_t i = 0; pith_policy_get(PITH_READ, i, &info) == PITH_OK; i++) {
        bool relays = strcmp(info.name, "tidaldecode") == 0 || strcmp(info.name, "lessismore") == 0;
        if (strcmp(info.name, "loki") == 0)
            continue; /* which needs a projection */
        snprintf(text[n], sizeof(text[n]),
                 "%s:budget=10,sinks=0,recent=0,dense-layers=0,phase=both%s", info.name,
                 relays ? ",source=0,reselect=2" : "");
        options[n] = text[n];
        n++;
    }
    assert_true(n >= 8);
    const struct eval_setup setup = setup_of(NULL, NULL);
    const struct eval_replay_params params = {.path = GOLDEN,
                                              .readers = options,
                                              .n_reader = n,
                                              .at = &at,
                                              .n_at = 1,
                                              .n_query = QUERIES};
    check(eval_replay(&setup, &params, &all, &err), &err);
    const json_t *figures = json_object_get(json_object_get(all, "summary"), "policies");
    size_t per = json_array_size(json_object_get(all, "rows")) / (size_t)n;
    assert_int_equal(json_array_size(figures), n);
    for (int32_t p = 0; p < n; p++) {
        json_t *one = replay(NULL, options[p], AT, QUERIES);
        const json_t *mine = json_array_get(figures, (size_t)p);
        assert_int_equal(strncmp(results_text(mine, "policy"), "read ", 5), 0);
        assert_string_equal(results_text(mine, "policy") + 5, options[p]);
        for (size_t i = 0; i < per; i++) {
            json_t *row = json_array_get(json_object_get(all, "rows"), per * (size_t)p + i);
            json_t *other = json_array_get(json_object_get(one, "rows"), i);
            assert_string_equal(results_text(row, "read"), results_text(other, "read"));
            assert_true(number(row, "lost_mass") == number(other, "lost_mass"));
            assert_true(number(row, "lost_mass") >= number(row, "lost_mass_best") - 1e-12);
        }
        double share = number(mine, "read_share");
        if (!(share > 0.0 && share < 1.0))
            fail_msg("%s: a share of %g was read", options[p], share);
        json_decref(one);
    }
    json_decref(all);
}

TEST(replay_refuses_bad_chunks)
{
    json_t *result = NULL;
    expect(try_replay(NULL, "nonsense", AT, 7, &result, &err), &err, PITH_INVALID, "nonsense");
    expect(try_replay(NULL, "quoka:budget=8,chunk=4", AT, 7, &result, &err), &err, PITH_INVALID,
           "7 tokens are no chunk of read policy quoka, which is of 1 to 4");
    assert_null(result);
}
