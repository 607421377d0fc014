/*
 * test_eval_report.c - the page of a report: well-formed for any results, complete, self-contained,
 * and with the figures of its results and no others.
 */
#define _POSIX_C_SOURCE 200809L

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include <report.h>
#include <report_data.h>
#include <report_svg.h>

#include "folder.h"

TEST_GROUP(make_folder, remove_folder);

#define DEPTH_MAX 64

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
    pith_error err = {0};
    if (eval_report(&path, 1, &page, notes, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return page;
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == ':';
}

/* One tag at *at ("<" is there): quotes closed, no "<" in values, names balanced. */
static const char *check_tag(const char *at, char stack[][24], int *depth)
{
    bool closing = at[1] == '/';
    const char *name = at + 1 + closing, *end = name;
    while (is_name(*end))
        end++;
    size_t len = (size_t)(end - name);
    if (len == 0 || len > 23)
        fail_msg("no name of a tag: %.40s", at);
    for (; *end != '>' && *end != '\0'; end++) {
        if (*end == '<')
            fail_msg("\"<\" within a tag: %.60s", at);
        if (*end != '"')
            continue;
        const char *close = strchr(end + 1, '"');
        assert_non_null(close);
        if (memchr(end, '<', (size_t)(close - end)) != NULL)
            fail_msg("\"<\" within a value: %.60s", at);
        end = close;
    }
    assert_true(*end == '>');
    if (closing) {
        assert_true(*depth > 0);
        (*depth)--;
        if (strlen(stack[*depth]) != len || strncmp(stack[*depth], name, len) != 0)
            fail_msg("</%.*s> closes <%s>", (int)len, name, stack[*depth]);
    } else if (end[-1] != '/') {
        assert_true(*depth < DEPTH_MAX);
        snprintf(stack[(*depth)++], 24, "%.*s", (int)len, name);
    }
    return end + 1;
}

/* "&name;" or "&#39;" at *at. */
static void check_entity(const char *at)
{
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strncmp(at, known[i], strlen(known[i])) == 0)
            return;
    fail_msg("no entity: %.20s", at);
}

/* XML's rules beyond the encoding. */
static void check_well_formed(const struct eval_text *page)
{
    static const char doctype[] = "<!DOCTYPE html>\n";
    char stack[DEPTH_MAX][24];
    int depth = 0;
    assert_int_equal(strlen(page->data), page->len);
    assert_int_equal(strncmp(page->data, doctype, strlen(doctype)), 0);
    for (const char *at = page->data + strlen(doctype); *at != '\0';) {
        if (*at == '<') {
            at = check_tag(at, stack, &depth);
            continue;
        }
        if (*at == '&')
            check_entity(at);
        if ((unsigned char)*at < 0x20 && *at != '\n' && *at != '\t')
            fail_msg("a control character before %.30s", at);
        at++;
    }
    if (depth != 0)
        fail_msg("<%s> is not closed", stack[depth - 1]);
}

/* Nothing on the page comes from elsewhere: it loads nothing, and links lead within it. */
static void check_alone(const struct eval_text *page)
{
    static const char *const foreign[] = {"://",   "src=", "@import", "<link", "<iframe",
                                          "<base", "url(", "fetch(",  "xmlns"};
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
        if (strstr(page->data, foreign[i]) != NULL)
            fail_msg("\"%s\" stands on the page", foreign[i]);
    for (const char *at = page->data; (at = strstr(at, "href=\"")) != NULL; at++) {
        char id[64];
        const char *target = at + 6;
        assert_true(*target == '#');
        snprintf(id, sizeof(id), "id=\"%.*s\"", (int)strcspn(target + 1, "\""), target + 1);
        if (strstr(page->data, id) == NULL)
            fail_msg("%s is linked to and is not there", id);
    }
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)) != NULL; text++)
        n++;
    return n;
}

static void expect_text(const struct eval_text *page, const char *text)
{
    if (strstr(page->data, text) == NULL)
        fail_msg("the page does not have: %s", text);
}

TEST(page_is_complete)
{
    struct eval_report_notes notes;
    write_lines(in_folder("usual.jsonl"), usual, N_USUAL, "");
    struct eval_text page = page_of(in_folder("usual.jsonl"), &notes);
    check_well_formed(&page);
    check_alone(&page);
    assert_int_equal(notes.n_result, N_USUAL);
    assert_int_equal(notes.n_cut + notes.n_ignored + notes.n_superseded, 0);
    /* Policies with their name and a chip, the full cache first. */
    expect_text(&page, "<li data-policy=\"0\"");
    expect_text(&page, "<span>full");
    expect_text(&page, "<span>streaming</span>");
    expect_text(&page, "<span>h2o:window=8</span>");
    /* Tokens and shares on axes of their own; memory; speed where it is known. */
    assert_int_equal(count(page.data, "against budget</b>"), 3);
    assert_int_equal(count(page.data, "against memory</b>"), 2);
    assert_int_equal(count(page.data, "against speed</b>"), 1);
    expect_text(&page, "budget, tokens");
    expect_text(&page, "budget, share of the tokens so far");
    expect_text(&page, "50%</text>");
    expect_text(&page, "line dashed");
    expect_text(&page, "prefers-color-scheme:dark");
    expect_text(&page, "@media print");
    /* A row per result, with its figures. */
    assert_int_equal(count(page.data, "<tr id=\"r"), N_USUAL);
    expect_text(&page, "<td>0.950</td>");
    expect_text(&page, "<td>792 KiB</td>");
    expect_text(&page, "<td>5,001</td>");
    eval_text_free(&page);
}

TEST(shows_intervals_of_scores)
{
    write_lines(in_folder("usual.jsonl"), usual, N_USUAL, "");
    struct eval_text page = page_of(in_folder("usual.jsonl"), NULL);
    /* Wilson's for 19 of 20; 1.96 standard errors for perplexity. */
    expect_text(&page, "<td>0.950</td><td class=\"soft\">0.764 to 0.991</td>");
    expect_text(&page, "<td class=\"soft\">8.005 to 8.495</td>");
    eval_text_free(&page);
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

TEST(missing_figures_are_dashes)
{
    static const struct line lines[] = {
        {"needle", "mini", "full", "score", NAN, 0, 0, 0, 0, 1, NULL},
        {"needle", "mini", "streaming:budget=64", "score", NAN, 0, 0, 0, 0, 1, NULL},
    };
    write_lines(in_folder("m.jsonl"), lines, 2, "");
    struct eval_text page = page_of(in_folder("m.jsonl"), NULL);
    check_well_formed(&page);
    expect_text(&page, "<td>" SVG_DASH "</td><td class=\"soft\">" SVG_DASH "</td><td>" SVG_DASH
                       "</td><td class=\"soft\">" SVG_DASH "</td><td>" SVG_DASH "</td><td>" SVG_DASH
                       "</td><td>" SVG_DASH "</td><td>" SVG_DASH "</td>");
    expect_text(&page, "<dt>measured</dt><dd>" SVG_DASH "</dd>");
    expect_text(&page, "<dt>machine</dt><dd>" SVG_DASH "</dd>");
    assert_null(strstr(page.data, "nan"));
    assert_null(strstr(page.data, "inf<"));
    assert_int_equal(count(page.data, "<svg class=\"chart\""), 0);
    eval_text_free(&page);
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
    pith_error err;
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
    pith_error err;
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

TEST(draws_scores_by_depth_and_length)
{
    write_lines(in_folder("usual.jsonl"), usual, N_USUAL, "");
    struct eval_text page = page_of(in_folder("usual.jsonl"), NULL);
    assert_int_equal(count(page.data, "<svg class=\"map\""), 2);
    expect_text(&page, "<title>512 tokens, depth 0: 0.750 of 4</title><rect class=\"h8\"");
    expect_text(&page, "<title>512 tokens, depth 0.5: 0.000 of 1</title><rect class=\"h0\"");
    expect_text(&page, "<title>512 tokens, depth 0.5: 0.500 of 2</title><rect class=\"h5\"");
    eval_text_free(&page);
}

TEST(shows_every_policy_at_every_budget)
{
    static const struct line lines[] = {
        {"recursion", "m", "full", "score", 0.75, 0, 4, 0, 0, 1,
         "[{\"steps\": 6, \"n\": 2, \"score\": 1.0}, {\"steps\": 8, \"n\": 2, \"score\": 0.5}]"},
        {"recursion", "m", "a<b:budget=256", "score", 0.5, 0, 4, 0, 0, 1,
         "[{\"steps\": 6, \"n\": 2, \"score\": 0.75}, {\"steps\": 8, \"n\": 2, \"score\": 0.25}]"},
        {"recursion", "m", "a<b:budget=64", "score", 0.125, 0, 4, 0, 0, 1,
         "[{\"steps\": 6, \"n\": 3, \"score\": 0.125}]"},
    };
    write_lines(in_folder("m.jsonl"), lines, 3, "");
    struct eval_text page = page_of(in_folder("m.jsonl"), NULL);
    check_well_formed(&page);
    const char *at = strstr(page.data, "Every policy at every budget");
    assert_non_null(at);
    /* Budgets stand in their order, the rows' means in the cells, a dash where there is no row. */
    const char *small = strstr(at, "a&lt;b at 64, steps 6"), *none = strstr(at, "at 64, steps 8");
    const char *large = strstr(at, "a&lt;b at 256, steps 8"), *full = strstr(at, "full, steps 8");
    assert_true(small != NULL && none != NULL && large != NULL && full != NULL);
    assert_true(full < small && small < none && none < large);
    assert_in_range(strstr(small, ">0.12<") - small, 1, 200);
    assert_in_range(strstr(none, "class=\"none\"") - none, 1, 60);
    assert_in_range(strstr(large, ">0.25<") - large, 1, 200);
    assert_in_range(strstr(full, ">0.50<") - full, 1, 200);
    eval_text_free(&page);
    /* One row lacks the setting in which the others differ: it gives the policy's figure at the
       budget. */
    struct line other[3];
    memcpy(other, lines, sizeof(other));
    other[2].rows = "[{\"score\": 0.125}]";
    write_lines(in_folder("m.jsonl"), other, 3, "");
    page = page_of(in_folder("m.jsonl"), NULL);
    check_well_formed(&page);
    assert_null(strstr(page.data, ", steps 6"));
    small = strstr(strstr(page.data, "Every policy at every budget"), "a&lt;b at 64<");
    assert_non_null(small);
    assert_in_range(strstr(small, ">0.12<") - small, 1, 200);
    eval_text_free(&page);
    /* Of one policy it would be the chart again; perplexity is no share. */
    write_lines(in_folder("m.jsonl"), lines + 1, 2, "");
    page = page_of(in_folder("m.jsonl"), NULL);
    assert_null(strstr(page.data, "Every policy at every budget"));
    eval_text_free(&page);
    write_lines(in_folder("m.jsonl"), usual + 4, 2, "");
    page = page_of(in_folder("m.jsonl"), NULL);
    assert_null(strstr(page.data, "Every policy at every budget"));
    eval_text_free(&page);
}

/* Two lanes of 16 tokens, looked at twice. Panels of few heads are 260 pixels wide. */
TEST(draws_kept_positions)
{
    static const struct line lines[] = {
        {"kept", "nano", "streaming:budget=8", "score", NAN, 0, 16, 100, 0, 1,
         "[{\"tokens\": 8, \"layer\": 0, \"head\": 0, \"entries\": 8, \"kept\": \"0-7\"},"
         " {\"tokens\": 8, \"layer\": 1, \"head\": 0, \"entries\": 8, \"kept\": \"0-7\"},"
         " {\"tokens\": 16, \"layer\": 0, \"head\": 0, \"entries\": 6, \"kept\": \"0-1,12-15\"},"
         " {\"tokens\": 16, \"layer\": 1, \"head\": 0, \"entries\": 2, \"kept\": \"0,15\"}]"},
    };
    write_lines(in_folder("kept.jsonl"), lines, 1, "");
    struct eval_text page = page_of(in_folder("kept.jsonl"), NULL);
    check_well_formed(&page);
    check_alone(&page);
    assert_int_equal(count(page.data, "class=\"kept c0\""), 2);
    /* 16.25 pixels per position, strips of 58 pixels. */
    expect_text(&page, "d=\"M0.0 0.00h130.0v58.00h-130.0zM0.0 58.00h32.5v58.00h-32.5z"
                       "M195.0 58.00h65.0v58.00h-65.0z\"");
    expect_text(&page, "M0.0 58.00h16.2v58.00h-16.2zM243.8 58.00h16.2v58.00h-16.2z\"");
    expect_text(&page, ">6 kept</text>");
    expect_text(&page, ">2 kept</text>");
    expect_text(&page, ">layer 1</text>");
    expect_text(&page, ">KV head 0</text>");
    eval_text_free(&page);
}

/* ---- hostile and damaged files ---- */

TEST(escapes_texts)
{
    static const char evil[] = "</title><script>alert('x')</script> & \"q\" \x01\x7f \xef\xbf\xbf";
    struct line lines[] = {usual[0], usual[1], usual[2]};
    for (int i = 0; i < 3; i++) {
        lines[i].model = evil;
        lines[i].task = "<b onclick=\"alert(1)\">task";
    }
    lines[1].policy = "<script>alert(2)</script>:budget=128";
    lines[2].policy = "<script>alert(2)</script>:budget=256";
    write_lines(in_folder("<evil>&.jsonl"), lines, 3, "");
    struct eval_text page = page_of(in_folder("<evil>&.jsonl"), NULL);
    check_well_formed(&page);
    check_alone(&page);
    assert_int_equal(count(page.data, "<script>"), 1); /* the page's own */
    assert_null(strstr(page.data, "<script>alert"));
    assert_null(strstr(page.data, "<b onclick"));
    assert_null(strchr(page.data, '\x01'));
    assert_null(strstr(page.data, "\xef\xbf\xbf"));
    expect_text(&page, "&lt;script&gt;alert(2)&lt;/script&gt;");
    expect_text(&page, "&lt;evil&gt;&amp;.jsonl");
    eval_text_free(&page);
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
    struct eval_text page = page_of(in_folder("\xff\xc3.jsonl"), NULL);
    check_well_formed(&page);
    json_t *read_back = json_stringn(page.data, page.len); /* NULL for invalid UTF-8 */
    assert_non_null(read_back);
    json_decref(read_back);
    eval_text_free(&page);
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
    struct eval_text page = page_of(in_folder("types.jsonl"), &notes);
    check_well_formed(&page);
    check_alone(&page);
    assert_int_equal(notes.n_result, 7);
    static const char *const bad[] = {"nan", "Minf", "hinf", "\"inf", " inf", "-inf"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (strstr(page.data, bad[i]) != NULL)
            fail_msg("%s stands on the page", bad[i]);
    assert_true(count(page.data, "<svg class=\"chart\"") >= 2);
    eval_text_free(&page);
}

TEST(damaged_lines_are_told)
{
    struct eval_report_notes notes;
    write_lines(in_folder("d.jsonl"), usual, N_USUAL,
                "garbage\n\n{\"task\": \"x\"}\n{\"task\": \"needle\", \"su");
    struct eval_text page = page_of(in_folder("d.jsonl"), &notes);
    assert_int_equal(notes.n_result, N_USUAL);
    assert_int_equal(notes.n_ignored, 2);
    assert_int_equal(notes.n_cut, 1);
    check_well_formed(&page);
    eval_text_free(&page);
}

TEST(reads_a_result_over_many_lines)
{
    struct eval_report_notes notes;
    json_t *line = make_line(&usual[0]);
    assert_int_equal(json_dump_file(line, in_folder("one.json"), JSON_INDENT(2)), 0);
    json_decref(line);
    struct eval_text page = page_of(in_folder("one.json"), &notes);
    assert_int_equal(notes.n_result, 1);
    assert_int_equal(notes.n_cut + notes.n_ignored, 0);
    check_well_formed(&page);
    eval_text_free(&page);
}

TEST(says_what_is_wrong_in_a_sentence)
{
    struct eval_text page = {0};
    pith_error err;
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

TEST(scales_hold_their_range)
{
    static const double spans[][2] = {{1, 1},       {0.5, 0.500001}, {64, 128},   {128, 8192},
                                      {1e-9, 1e12}, {3, 11.9},       {999, 1001}, {2e5, 9e5}};
    for (size_t i = 0; i < sizeof(spans) / sizeof(spans[0]); i++)
        for (int bytes = 0; bytes < 2; bytes++) {
            struct svg_scale s = svg_scale_positive(spans[i][0], spans[i][1], 0, 100, bytes);
            assert_true(s.n_tick >= 1 && s.n_tick <= SVG_TICKS_MAX);
            assert_true(svg_at(&s, spans[i][0]) >= 0 && svg_at(&s, spans[i][1]) <= 100);
            for (int32_t t = 0; t < s.n_tick; t++) {
                assert_true(svg_at(&s, s.tick[t]) >= -1e-6 && svg_at(&s, s.tick[t]) <= 100 + 1e-6);
                assert_true(t == 0 || s.tick[t] > s.tick[t - 1]);
            }
        }
    struct svg_scale zero = svg_scale_linear(0, 1, 280, 10);
    assert_int_equal(zero.n_tick, 6);
    assert_float_equal(svg_at(&zero, 0), 280, 1e-9);
    assert_float_equal(svg_at(&zero, 1), 10, 1e-9);
}

TEST(writes_figures_with_units)
{
    char buf[32];
    assert_string_equal(figure_bytes(512, buf), "512 B");
    assert_string_equal(figure_bytes(1536, buf), "1.5 KiB");
    assert_string_equal(figure_bytes(1 << 20, buf), "1 MiB");
    assert_string_equal(figure_bytes(NAN, buf), SVG_DASH);
    assert_string_equal(figure_count(1234567, buf), "1,234,567");
    assert_string_equal(figure_count(-1234, buf), "-1,234");
    assert_string_equal(figure_count(999, buf), "999");
    assert_string_equal(figure_count(INFINITY, buf), SVG_DASH);
    assert_string_equal(figure_plain(0.9822, buf), "0.982");
    assert_string_equal(figure_plain(12.34, buf), "12.3");
    assert_string_equal(figure_plain(12345.6, buf), "12,346");
}

/* Labels leave marks and each other alone; one without room is left out. */
TEST(labels_do_not_overlap)
{
    struct eval_text t = {0};
    struct svg_boxes b = {.left = 0, .top = 0, .right = 100, .bottom = 60};
    for (int i = 0; i < 12; i++)
        svg_boxes_mark(&b, 50 + i, 30, 5);
    for (int i = 0; i < 12; i++)
        svg_boxes_label(&b, &t, 50 + i, 30, "x", "123");
    for (int32_t i = 12; i < b.n; i++)
        for (int32_t j = 0; j < i; j++)
            assert_true(b.box[i].x0 >= b.box[j].x1 || b.box[i].x1 <= b.box[j].x0 ||
                        b.box[i].y0 >= b.box[j].y1 || b.box[i].y1 <= b.box[j].y0);
    assert_int_equal(count(t.data, "<text"), b.n - 12);
    assert_true(b.n > 12 && b.n < 24);
    eval_text_free(&t);
}
