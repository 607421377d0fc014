/*
 * results.c - reads files of results, of which the last line may be half written.
 *
 * A file that a killed sweep left is the usual case, not an error. Whole lines are taken, and the
 * rest is reported to the caller, who decides what to do about it.
 */
#include "results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 1e18 /* fits int64_t, and sums and products of a few are finite */

double results_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    double number = json_is_number(value) ? json_number_value(value) : (double)NAN;
    return fabs(number) <= NUMBER_MAX ? number : (double)NAN;
}

const char *results_text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

double results_score(const json_t *row)
{
    double score = results_number(row, "score");
    const char *verdict = results_text(row, "verdict");
    const json_t *pass = json_object_get(row, "pass");
    if (!isnan(score))
        return score;
    if (json_is_boolean(pass))
        return json_is_true(pass) ? 1.0 : 0.0;
    if (verdict != NULL)
        return strcmp(verdict, "PASS") == 0 ? 1.0 : 0.0;
    return (double)NAN;
}

double results_texts(const json_t *row)
{
    double n = results_number(row, "n");
    return n > 0.0 ? n : 1.0;
}

static bool is_result(const json_t *line)
{
    return results_text(line, "task") != NULL && json_is_object(json_object_get(line, "summary")) &&
           json_is_array(json_object_get(line, "rows"));
}

static bool is_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (strchr(" \t\r", text[i]) == NULL)
            return false;
    return true;
}

/* One whole line; false when out of memory. A line that Jansson cannot read is no result. */
static bool add_line(struct results *r, const char *text, size_t len, int32_t number)
{
    json_t *line = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    if (is_result(line))
        return json_array_append_new(r->lines, line) == 0;
    json_decref(line);
    if (is_blank(text, len))
        return true;
    if (r->n_ignored++ == 0)
        r->first_ignored = number;
    return true;
}

/* Whether a line may have begun as eval_result begins all of them. */
static bool begins_result(const char *text, size_t len)
{
    static const char begin[] = "{\"task\":\"";
    return memcmp(text, begin, len < strlen(begin) ? len : strlen(begin)) == 0;
}

pith_status results_read(const char *path, struct results *out, pith_error *err)
{
    char *text = NULL;
    size_t len = 0;
    int32_t number = 0;
    struct results r = {0};
    pith_status status = eval_read_file(path, &text, &len, err);
    if (status != PITH_OK)
        return status;
    r.lines = json_array();
    bool ok = r.lines != NULL;
    for (size_t at = 0; ok && at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        if (end == NULL) {
            r.cut = true;
            r.cut_is_result = begins_result(text + at, len - at);
            break;
        }
        size_t line_len = (size_t)(end - (text + at));
        ok = add_line(&r, text + at, line_len, ++number);
        at += line_len + 1;
        r.whole_bytes = (int64_t)at;
    }
    free(text);
    if (!ok) {
        results_free(&r);
        return eval_fail(err, PITH_NOMEM, "%s: no memory for its results", path);
    }
    *out = r;
    return PITH_OK;
}

pith_status results_read_one(const char *path, struct results *r, pith_error *err)
{
    char *text = NULL;
    size_t len = 0;
    pith_status status = eval_read_file(path, &text, &len, err);
    if (status != PITH_OK)
        return status;
    json_t *one = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    if (!is_result(one)) {
        json_decref(one);
        return PITH_OK;
    }
    json_t *lines = json_array();
    if (json_array_append_new(lines, one) != 0) {
        json_decref(lines);
        return eval_fail(err, PITH_NOMEM, "%s: no memory for its result", path);
    }
    results_free(r);
    *r = (struct results){.lines = lines, .whole_bytes = (int64_t)len};
    return PITH_OK;
}

void results_free(struct results *r)
{
    json_decref(r->lines);
    *r = (struct results){0};
}
