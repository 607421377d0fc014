/*
 * test_eval_report.c - what the page of a report is given to draw: the figures of the results and
 * no others, whatever the results hold. test_sheet.py looks at the drawing.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include <report.h>
#include <report_data.h>

#include "folder.h"

TEST_GROUP(make_folder, remove_folder);

/* ---- fixtures ---- */

/* Adds a line; values that are NAN or NULL are left out. */
struct line {
    const char *task;
    const char *model;
    const char *policy; /* with its budget */
    const char *key;    /* "score", "perplexity" */
    double value;
    double error;
    double n;
    double bytes;
    double speed;
    int seed;
    const char *rows; /* JSON; NULL: none */
};

static json_t *make_line(const struct line *l)
{
    json_t *summary = json_object();
    json_t *settings = json_pack("{s:s, s:i}", "style", "pith", "seed", l->seed);
    if (!isnan(l->value))
        json_object_set_new(summary, l->key, json_real(l->value));
    if (l->error > 0)
        json_object_set_new(summary, "perplexity_se", json_real(l->error));
    if (l->n > 0)
        json_object_set_new(summary, "n", json_integer((json_int_t)l->n));
    if (l->bytes > 0)
        json_object_set_new(summary, "kv_peak_bytes", json_integer((json_int_t)l->bytes));
    if (l->speed > 0)
        json_object_set_new(summary, "tokens_per_s", json_real(l->speed));
    json_t *rows = l->rows != NULL ? json_loads(l->rows, 0, NULL) : json_array();
    assert_non_null(rows);
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o}", "task", l->task, "model", l->model, "policy",
                     l->policy, "settings", settings, "summary", summary, "rows", rows);
}

static void write_lines(const char *path, const struct line *lines, size_t n, const char *after)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (size_t i = 0; i < n; i++) {
        json_t *line = make_line(&lines[i]);
        assert_int_equal(json_dumpf(line, file, JSON_COMPACT), 0);
        fputc('\n', file);
        json_decref(line);
    }
    fputs(after, file);
    fclose(file);
}

static const struct line usual[] = {
    {"needle", "nano", "full", "score", 0.95, 0, 20, 811008, 5001.25, 1,
     "[{\"length\": 512, \"depth\": 0, \"n\": 2, \"score\": 1.0},"
     " {\"length\": 512, \"depth\": 0.5, \"n\": 2, \"score\": 0.5}]"},
    {"needle", "nano", "streaming:budget=128", "score", 0.2, 0, 20, 202752, 6357, 1,
     "[{\"length\": 512, \"depth\": 0, \"n\": 1, \"score\": 0.0},"
     " {\"length\": 512, \"depth\": 0, \"n\": 3, \"score\": 1.0},"
     " {\"length\": 512, \"depth\": 0.5, \"verdict\": \"PARTIAL_WORD\"}]"},
    {"needle", "nano", "streaming:budget=256", "score", 0.45, 0, 20, 304128, 6100, 1, NULL},
    {"needle", "nano", "h2o:budget=50%,window=8", "score", 0.9, 0, 20, 405504, 4100, 1, NULL},
    {"perplexity", "nano", "full", "perplexity", 8.25, 0.125, 40, 811008, 0, 1, NULL},
    {"perplexity", "nano", "streaming:budget=128", "perplexity", 9.5, 0.25, 40, 202752, 0, 1, NULL},
};
#define N_USUAL (sizeof(usual) / sizeof(usual[0]))

/* ---- the page ---- */

static struct eval_text page_of(const char *path, struct eval_report_notes *notes)
{
    struct eval_text page = {0};
    err = (pith_error){0};
    if (eval_report(&path, 1, &page, notes, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return page;
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)) != NULL; text++)
        n++;
    return n;
}

/* The JSON that a page shows. No character of it can end the element that it stands in. The
   rest of the page is always the same, and loads nothing. */
static json_t *shown_by(struct eval_text page)
{
    static const char *const foreign[] = {" src=", "@import", "<link", "<iframe", "<base", "url("};
    static const char begin[] = "<script type=\"application/json\" id=\"data\">\n";
    const char *json = strstr(page.data, begin), *end;
    assert_int_equal(strlen(page.data), page.len);
    assert_non_null(json);
    json += strlen(begin);
    end = strstr(json, "\n</script>");
    assert_non_null(end);
    for (const char *at = json; at < end; at++)
        if (*at < 0x20 || *at == '<')
            fail_msg("byte 0x%02x in the JSON before %.30s", (unsigned char)*at, at);
    assert_int_equal(count(page.data, "<script>"), 1);
    assert_int_equal(count(page.data, "</script>"), 2);
    assert_int_equal(count(page.data, "{{"), 0);
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
        if (strstr(end, foreign[i]) != NULL)
            fail_msg("\"%s\" stands on the page", foreign[i]);
    json_t *shown = json_loadb(json, (size_t)(end - json), 0, NULL);
    assert_non_null(shown);
    eval_text_free(&page);
    return shown;
}

static json_t *shown_of(const char *path)
{
    return shown_by(page_of(path, NULL));
}

/* The value at a place: "cells", 1, "low". */
static const json_t *at(const json_t *shown, const char *list, size_t i, const char *key)
{
    const json_t *value = json_object_get(json_array_get(json_object_get(shown, list), i), key);
    if (value == NULL)
        fail_msg("%s[%zu] has no \"%s\"", list, i, key);
    return value;
}

static void expect_text(const json_t *shown, const char *list, size_t i, const char *key,
                        const char *text)
{
    assert_string_equal(json_string_value(at(shown, list, i, key)), text);
}

/* NAN: nothing. */
static void expect_figure(const json_t *shown, const char *list, size_t i, const char *key,
                          double figure)
{
    const json_t *value = at(shown, list, i, key);
    assert_true(isnan(figure) == json_is_null(value));
    if (!isnan(figure))
        assert_float_equal(json_number_value(value), figure, 5e-4);
}

TEST(page_is_complete)
{
    struct eval_report_notes notes;
    write_lines(in_folder("usual.jsonl"), usual, N_USUAL, "");
    json_t *shown = shown_by(page_of(in_folder("usual.jsonl"), &notes));
    assert_int_equal(notes.n_result, N_USUAL);
    assert_int_equal(notes.n_cut + notes.n_ignored + notes.n_superseded, 0);
    /* Policies with their name, the full cache first. */
    static const char *const policies[] = {"full", "streaming", "h2o:window=8"};
    for (size_t i = 0; i < 3; i++) {
        expect_text(shown, "policies", i, "name", policies[i]);
        expect_figure(shown, "policies", i, "slot", (double)i - 1);
    }
    /* A cell per result, with its figures; Wilson's interval for 19 of 20, and 1.96 standard
       errors for perplexity. */
    assert_int_equal(json_array_size(json_object_get(shown, "cells")), N_USUAL);
    static const struct {
        const char *key;
        double first, fifth;
    } figures[] = {{"value", 0.95, 8.25},        {"low", 0.764, 8.005},
                   {"high", 0.991, 8.495},       {"n", 20, 40},
                   {"kv_bytes", 811008, 811008}, {"tokens_per_s", 5001.25, NAN},
                   {"evicted", NAN, NAN}};
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        expect_figure(shown, "cells", 0, figures[i].key, figures[i].first);
        expect_figure(shown, "cells", 4, figures[i].key, figures[i].fifth);
    }
    /* Tokens and shares are budgets of different kinds. */
    const json_t *budget = at(shown, "cells", 3, "budget");
    assert_string_equal(results_text(budget, "kind"), "share");
    assert_string_equal(results_text(budget, "text"), "50%");
    assert_float_equal(results_number(budget, "value"), 0.5, 0);
    assert_true(json_is_null(at(shown, "cells", 0, "budget")));
    /* Of rows what maps need: a verdict that is not the full one is a score of 0. */
    const json_t *row = json_array_get(at(shown, "cells", 1, "rows"), 2);
    assert_float_equal(results_number(row, "score"), 0, 0);
    assert_float_equal(results_number(row, "n"), 1, 0);
    assert_float_equal(results_number(row, "depth"), 0.5, 0);
    assert_null(json_object_get(row, "verdict"));
    json_decref(shown);
}

/* 1 - lost mass is no share of right answers: it has neither their name nor their interval. */
TEST(replays_are_no_accuracy)
{
    json_t *summary = json_pack("{s:f, s:f, s:i}", "score", 0.75, "lost_mass", 0.25, "n", 6);
    struct report_cell cell = {.summary = summary};
    struct report_point p = {0};
    const struct report_metric *metric = report_metric_of(summary);
    assert_string_equal(metric->key, "lost_mass");
    report_measure(metric, &cell, 1, &p);
    assert_float_equal(p.value, 0.25, 0);
    assert_true(isnan(p.low) && isnan(p.high));
    json_decref(summary);
}

/* A divergence of half its error is not below 0 at the lower end of its interval. */
TEST(intervals_end_at_zero)
{
    json_t *summary = json_pack("{s:f, s:f, s:i}", "kl_mean", 0.5, "kl_se", 1.0, "n", 6);
    struct report_cell cell = {.summary = summary};
    struct report_point p = {0};
    report_measure(report_metric_of(summary), &cell, 1, &p);
    assert_float_equal(p.low, 0.0, 0);
    assert_float_equal(p.high, 2.459964, 1e-6);
    json_decref(summary);
}

TEST(missing_figures_are_null)
{
    static const char *const figures[] = {"n",        "value",   "low",    "high",
                                          "kv_bytes", "evicted", "rounds", "read_share",
                                          "prompt_s", "recall_s"};
    static const struct line line = {"needle", "mini", "full", "score", NAN, 0, 0, 0, 0, 1, NULL};
    write_lines(in_folder("m.jsonl"), &line, 1, "");
    json_t *shown = shown_of(in_folder("m.jsonl"));
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
        expect_figure(shown, "cells", 0, figures[i], NAN);
    assert_true(json_is_null(at(shown, "groups", 0, "metric")));
    json_decref(shown);
}

TEST(seeds_are_one_point)
{
    static const struct line lines[] = {
        {"needle", "nano", "streaming:budget=64", "score", 0.5, 0, 10, 1000, 100, 1, NULL},
        {"needle", "nano", "streaming:budget=64", "score", 0.8, 0, 30, 3000, 300, 2, NULL},
        {"needle", "nano", "streaming:budget=64", "score", 0.1, 0, 30, 9000, 900, 3, NULL},
        {"needle", "nano", "streaming:budget=64", "score", 0.6, 0, 10, 2000, 500, 3, NULL},
    };
    struct report r;
    const char *path = in_folder("seeds.jsonl");
    write_lines(path, lines, 4, "");
    assert_int_equal(report_read(&path, 1, &r, &err), PITH_OK);
    assert_int_equal(r.n_point, 1);
    assert_int_equal(r.n_cell, 3);
    assert_int_equal(r.n_superseded, 1); /* seed 3 was run again */
    const struct report_point *p = &r.points[0];
    struct eval_interval i = eval_wilson(35, 50);
    assert_float_equal(p->value, 0.7, 1e-12);
    assert_float_equal(p->low, i.low, 1e-12);
    assert_float_equal(p->high, i.high, 1e-12);
    assert_float_equal(p->n, 50, 0);
    assert_float_equal(p->kv_bytes, 3000, 0);
    assert_float_equal(p->tokens_per_s, 300, 1e-9);
    report_free(&r);
}

/* Rows that differ in their settings go to different charts; rows that differ in their seed do
   not. */
TEST(settings_make_groups_and_seeds_do_not)
{
    struct line lines[] = {usual[0], usual[1], usual[0], usual[4]};
    struct report r;
    const char *path = in_folder("groups.jsonl");
    lines[2].model = "mini";
    lines[1].seed = 9;
    write_lines(path, lines, 4, "");
    assert_int_equal(report_read(&path, 1, &r, &err), PITH_OK);
    assert_int_equal(r.n_group, 3);
    assert_string_equal(r.groups[0].title, "needle");
    assert_string_equal(r.groups[1].title, "needle (2)");
    assert_string_equal(r.groups[2].title, "perplexity");
    assert_int_equal(r.groups[0].n_point, 2);
    assert_int_equal(r.policies[0].slot, -1);
    assert_int_equal(r.policies[1].slot, 0);
    report_free(&r);
}

/* Rows of several policies, which name theirs, would lie on one another. */
TEST(rows_of_several_policies_have_no_map)
{
    static const struct line lines[] = {
        {"kept", "nano", "streaming:budget=8", "score", NAN, 0, 16, 100, 0, 1,
         "[{\"tokens\": 8, \"layer\": 0, \"head\": 0, \"entries\": 8, \"kept\": \"0-7\"},"
         " {\"tokens\": 8, \"layer\": 0, \"head\": 0, \"kept\": \"0-7\", \"policy\": \"x\"}]"},
    };
    write_lines(in_folder("kept.jsonl"), lines, 1, "");
    json_t *shown = shown_of(in_folder("kept.jsonl"));
    const json_t *rows = at(shown, "cells", 0, "rows");
    assert_string_equal(results_text(json_array_get(rows, 0), "kept"), "0-7");
    assert_null(results_text(json_array_get(rows, 1), "kept"));
    json_decref(shown);
}

/* ---- hostile and damaged files ---- */

TEST(texts_cannot_leave_the_json)
{
    static const char evil[] = "</script><script>alert('x')</script> & \"q\" \x01\x7f \xef\xbf\xbf";
    struct line line = usual[1];
    line.model = evil;
    line.task = "<!--<script>task";
    line.policy = "<script>alert(2)</script>:budget=128";
    write_lines(in_folder("<evil>&.jsonl"), &line, 1, "");
    json_t *shown = shown_of(in_folder("<evil>&.jsonl"));
    expect_text(shown, "groups", 0, "model", evil);
    expect_text(shown, "groups", 0, "title", line.task);
    expect_text(shown, "policies", 0, "name", "<script>alert(2)</script>");
    assert_non_null(strstr(json_string_value(at(shown, "cells", 0, "file")), "<evil>&.jsonl"));
    json_decref(shown);
}

/* Names of files are any bytes, and a long policy is cut where its bytes end. */
TEST(shows_texts_that_are_no_utf8)
{
    char policy[602] = "x";
    struct line line = usual[0];
    for (size_t i = 1; i + 2 < sizeof(policy); i += 2)
        memcpy(policy + i, "\xc3\xa9", 3);
    line.policy = policy;
    write_lines(in_folder("\xff\xc3.jsonl"), &line, 1, "");
    json_t *shown = shown_of(in_folder("\xff\xc3.jsonl"));
    assert_non_null(strstr(json_string_value(at(shown, "cells", 0, "file")), "/\xef\xbf\xbd"));
    assert_int_equal(strlen(json_string_value(at(shown, "policies", 0, "name"))) / 100, 5);
    json_decref(shown);
}

TEST(wrong_types_leave_no_figure)
{
    static const char text[] =
        "{\"task\":\"needle\",\"summary\":{\"score\":\"high\",\"n\":-3,\"kv_peak_bytes\":-1},"
        "\"rows\":[1,[],null,{\"length\":\"x\",\"depth\":0,\"score\":1}],\"model\":7,"
        "\"policy\":[],\"settings\":[],\"cell\":3,\"run\":\"x\"}\n"
        "{\"task\":\"needle\",\"summary\":{\"score\":7.5,\"n\":1e300,\"kv_peak_bytes\":1e308,"
        "\"tokens_per_s\":1e-308},\"rows\":[{\"length\":1e300,\"depth\":-5,\"score\":-1e9}],"
        "\"policy\":\"a:budget=99999999999999999999\"}\n"
        "{\"task\":\"needle\",\"summary\":{\"score\":0.5,\"n\":1,\"kv_peak_bytes\":5,"
        "\"tokens_per_s\":1e17},\"rows\":[],\"policy\":\"a:budget=7\"}\n"
        "{\"task\":\"needle\",\"summary\":{\"score\":0.25,\"n\":1,\"kv_peak_bytes\":1e18,"
        "\"tokens_per_s\":1e-300},\"rows\":[],\"policy\":\"a:budget=8\"}\n"
        "{\"task\":\"needle\",\"summary\":{\"score\":-7.5,\"n\":2},\"rows\":[],"
        "\"policy\":\"a:budget=0\",\"cell\":{\"engine\":{\"a\":[1]},\"policy\":\"\"}}\n"
        "{\"task\":\"kept\",\"settings\":{\"seed\":1},\"summary\":{},\"rows\":[{\"tokens\":1e300,"
        "\"layer\":4095,"
        "\"head\":4095,\"kept\":\"9-1,,x,5-\",\"entries\":-1}]}\n"
        "{\"task\":\"kept\",\"summary\":{},\"rows\":[{\"tokens\":4,\"layer\":0.5,\"head\":0,"
        "\"kept\":\"9-1,3,1e308-2,-7\"},{\"tokens\":4,\"layer\":-1,\"head\":0,\"kept\":\"1\"}]}\n";
    FILE *file = fopen(in_folder("types.jsonl"), "wb");
    fputs(text, file);
    fclose(file);
    struct eval_report_notes notes;
    json_t *shown = shown_by(page_of(in_folder("types.jsonl"), &notes));
    assert_int_equal(notes.n_result, 7);
    expect_figure(shown, "cells", 0, "value", NAN);
    expect_figure(shown, "cells", 0, "kv_bytes", -1);
    json_decref(shown);
}

TEST(damaged_lines_are_told)
{
    struct eval_report_notes notes;
    write_lines(in_folder("d.jsonl"), usual, N_USUAL,
                "garbage\n\n{\"task\": \"x\"}\n{\"task\": \"needle\", \"su");
    json_t *shown = shown_by(page_of(in_folder("d.jsonl"), &notes));
    assert_int_equal(notes.n_result, N_USUAL);
    assert_int_equal(notes.n_ignored, 2);
    assert_int_equal(notes.n_cut, 1);
    assert_int_equal(json_integer_value(json_object_get(shown, "n_ignored")), 3);
    json_decref(shown);
}

TEST(reads_a_result_over_many_lines)
{
    struct eval_report_notes notes;
    json_t *line = make_line(&usual[0]);
    assert_int_equal(json_dump_file(line, in_folder("one.json"), JSON_INDENT(2)), 0);
    json_decref(line);
    json_decref(shown_by(page_of(in_folder("one.json"), &notes)));
    assert_int_equal(notes.n_result, 1);
    assert_int_equal(notes.n_cut + notes.n_ignored, 0);
}

TEST(says_what_is_wrong_in_a_sentence)
{
    struct eval_text page = {0};
    const char *absent = in_folder("absent.jsonl"), *empty = in_folder("empty.jsonl");
    assert_int_equal(eval_report(&absent, 1, &page, NULL, &err), PITH_IO);
    assert_non_null(strstr(err.message, "absent.jsonl"));
    write_lines(empty, usual, 0, "{}\n");
    assert_int_equal(eval_report(&empty, 1, &page, NULL, &err), PITH_FORMAT);
    assert_non_null(strstr(err.message, "empty.jsonl"));
    eval_text_add(&page, "text");
    assert_int_equal(eval_write_file(in_folder("no/such.html"), &page, &err), PITH_IO);
    assert_non_null(strstr(err.message, "no/such.html"));
    assert_int_equal(eval_write_file(in_folder("page.html"), &page, &err), PITH_OK);
    eval_text_free(&page);
}

/* ---- pieces ---- */

TEST(reads_budgets_out_of_policies)
{
    static const struct {
        const char *text, *policy;
        enum report_budget_kind kind;
        double value;
    } cases[] = {
        {"full", "full", REPORT_BUDGET_NONE, 0},
        {"streaming:budget=128", "streaming", REPORT_BUDGET_TOKENS, 128},
        {"streaming:sinks=4,budget=12.5%", "streaming:sinks=4", REPORT_BUDGET_SHARE, 0.125},
        {"h2o:budget=64MiB,window=8", "h2o:window=8", REPORT_BUDGET_BYTES, 67108864},
        {"h2o:budget=1500B", "h2o", REPORT_BUDGET_BYTES, 1500},
        {"h2o:budget=1.5kB", "h2o", REPORT_BUDGET_BYTES, 1500},
        {"h2o:budget=4MB", "h2o", REPORT_BUDGET_BYTES, 4e6},
        {"h2o:budget=2GB", "h2o", REPORT_BUDGET_BYTES, 2e9},
        {"h2o:budget=512KiB", "h2o", REPORT_BUDGET_BYTES, 524288},
        {"h2o:budget=1GiB", "h2o", REPORT_BUDGET_BYTES, 1073741824},
        {"h2o:budget=4k", "h2o:budget=4k", REPORT_BUDGET_NONE, 0}, /* nor does --keep read it */
        {"h2o:budget=x", "h2o:budget=x", REPORT_BUDGET_NONE, 0},
        {"h2o:budget=", "h2o:budget=", REPORT_BUDGET_NONE, 0},
        {"h2o:rebudget=5", "h2o:rebudget=5", REPORT_BUDGET_NONE, 0},
        {"budget=5", "budget=5", REPORT_BUDGET_NONE, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char policy[64];
        struct report_budget b;
        report_split_policy(cases[i].text, policy, sizeof(policy), &b);
        assert_string_equal(policy, cases[i].policy);
        assert_int_equal(b.kind, cases[i].kind);
        assert_float_equal(b.value, cases[i].value, 1e-9);
    }
}
