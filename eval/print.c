/*
 * print.c - results as tables, CSV and JSON. Numbers are written for people in the table and with
 * 15 digits, which every double survives that was a decimal number of as many, elsewhere.
 */
#include "print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELL_MAX 44 /* characters of a cell of the table; longer texts are cut */
#define DIGITS 15

/* ---- columns ---- */

/* The keys of all rows in the order in which they appear. Where there is a list of texts they are
   its keys: an object with them. NULL: no memory. */
static json_t *collect_keys(const json_t *rows, const json_t *wanted)
{
    json_t *keys = json_object();
    size_t i;
    const json_t *row;
    const char *key;
    json_t *value;
    json_array_foreach((json_t *)wanted, i, value) if (json_is_string(value))
        json_object_set_new(keys, json_string_value(value), json_integer(0));
    if (json_object_size(keys) > 0)
        return keys;
    json_array_foreach((json_t *)rows, i, row) json_object_foreach(
        (json_t *)row, key, value) if (json_object_get(keys, key) == NULL &&
                                       json_object_set_new(keys, key, json_integer(0)) != 0)
    {
        json_decref(keys);
        return NULL;
    }
    return keys;
}

static bool is_right(const json_t *value)
{
    return value == NULL || json_is_number(value) || json_is_null(value);
}

/* ---- values ---- */

/* The value as a person reads it; a failed text means no memory. */
static void add_plain(const json_t *value, struct eval_text *out)
{
    if (value == NULL || json_is_null(value)) {
        eval_text_add(out, "-");
    } else if (json_is_boolean(value)) {
        eval_text_add(out, json_is_true(value) ? "yes" : "no");
    } else if (json_is_integer(value)) {
        eval_text_printf(out, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        double v = json_real_value(value), size = fabs(v);
        eval_text_printf(out, v == 0.0 || (size >= 0.001 && size < 1e6) ? "%.4f" : "%.4g", v);
    } else if (json_is_string(value)) {
        eval_text_add_n(out, json_string_value(value), json_string_length(value));
    } else {
        eval_text_add_json(out, value, JSON_COMPACT | JSON_REAL_PRECISION(6));
    }
}

static bool is_start(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80; /* no byte within a character of UTF-8 */
}

static size_t count_characters(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += is_start(text[i]);
    return n;
}

/* Makes a text fit a cell: one line, at most CELL_MAX characters. */
static void fit_cell(struct eval_text *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->len; i++) {
        if ((unsigned char)t->data[i] < 0x20)
            t->data[i] = ' ';
        n += is_start(t->data[i]);
        if (n > CELL_MAX) {
            t->len = i;
            t->data[i] = '\0';
            while (t->len > 0 && count_characters(t->data, t->len) > CELL_MAX - 2)
                t->data[--t->len] = '\0';
            eval_text_add(t, "..");
            return;
        }
    }
}

/* ---- the table ---- */

static void add_padding(struct eval_text *out, size_t n)
{
    eval_text_printf(out, "%*s", (int)n, "");
}

/* The cell's text in a scratch text that is cleared first. */
static void make_cell(const json_t *value, struct eval_text *cell)
{
    eval_text_clear(cell);
    add_plain(value, cell);
    if (!cell->failed)
        fit_cell(cell);
}

/* Widths of the columns in characters, [n]; whether numbers stand in it, [n]. */
struct column {
    size_t width;
    bool right;
};

static void measure_columns(const json_t *rows, json_t *keys, struct column *columns,
                            struct eval_text *cell)
{
    size_t c = 0, i;
    const char *key;
    json_t *unused;
    const json_t *row;
    json_object_foreach(keys, key, unused)
    {
        struct column *col = &columns[c++];
        *col = (struct column){strlen(key), true};
        json_array_foreach((json_t *)rows, i, row)
        {
            const json_t *value = json_object_get(row, key);
            make_cell(value, cell);
            size_t width = count_characters(cell->data, cell->len);
            if (width > col->width)
                col->width = width;
            col->right = col->right && is_right(value);
        }
    }
}

/* A cell and the gap in front of it; what would only be blanks at the end of a line is left out. */
static void add_cell(struct eval_text *out, const char *text, size_t len, const struct column *col,
                     bool first, bool last)
{
    size_t pad = col->width - count_characters(text, len);
    if (!first)
        eval_text_add(out, "  ");
    if (col->right)
        add_padding(out, pad);
    eval_text_add_n(out, text, len);
    if (!col->right && !last)
        add_padding(out, pad);
}

static void add_rows(const json_t *rows, json_t *keys, const struct column *columns,
                     struct eval_text *cell, struct eval_text *out)
{
    size_t n = json_object_size(keys), c = 0, i;
    const char *key;
    json_t *unused;
    const json_t *row;
    json_object_foreach(keys, key, unused)
    {
        add_cell(out, key, strlen(key), &columns[c], c == 0, c + 1 == n);
        c++;
    }
    eval_text_add(out, "\n");
    json_array_foreach((json_t *)rows, i, row)
    {
        c = 0;
        json_object_foreach(keys, key, unused)
        {
            make_cell(json_object_get(row, key), cell);
            add_cell(out, cell->data, cell->len, &columns[c], c == 0, c + 1 == n);
            c++;
        }
        eval_text_add(out, "\n");
    }
    eval_text_add(out, "\n");
}

static void add_row_table(const json_t *rows, const json_t *wanted, struct eval_text *out)
{
    struct eval_text cell = {0};
    struct column *columns = NULL;
    json_t *keys = collect_keys(rows, wanted);
    size_t n = json_object_size(keys);
    if (keys != NULL && n > 0) {
        columns = calloc(n, sizeof(*columns));
        eval_text_add(&cell, "");
        if (columns != NULL)
            measure_columns(rows, keys, columns, &cell);
        if (columns != NULL && !cell.failed)
            add_rows(rows, keys, columns, &cell, out);
    }
    if (keys == NULL || (n > 0 && (columns == NULL || cell.failed)))
        out->failed = true;
    free(columns);
    eval_text_free(&cell);
    json_decref(keys);
}

/* ---- the summary ---- */

/* The longest name of a figure; objects within are "outer.inner", one level of them. */
static size_t longest_name(const json_t *summary)
{
    size_t longest = 0;
    const char *key, *inner;
    json_t *value, *part;
    json_object_foreach((json_t *)summary, key, value)
    {
        size_t len = strlen(key);
        if (!json_is_object(value) && len > longest)
            longest = len;
        json_object_foreach(value, inner, part) if (len + 1 + strlen(inner) > longest) longest =
            len + 1 + strlen(inner);
    }
    return longest;
}

static void add_size(double bytes, struct eval_text *out)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    int unit = -1;
    for (; bytes >= 1024.0 && unit < 3; unit++)
        bytes /= 1024.0;
    if (unit >= 0)
        eval_text_printf(out, " (%.1f %s)", bytes, units[unit]);
}

static void add_figure(const char *outer, const char *key, const json_t *value, size_t width,
                       struct eval_text *out)
{
    size_t start = out->len, len = strlen(key);
    eval_text_printf(out, "%s%s%s", outer, outer[0] != '\0' ? "." : "", key);
    if (out->failed)
        return;
    add_padding(out, width + 2 - (out->len - start));
    add_plain(value, out);
    if (len > 6 && strcmp(key + len - 6, "_bytes") == 0 && json_is_number(value))
        add_size(json_number_value(value), out);
    eval_text_add(out, "\n");
}

static void add_summary(const json_t *summary, struct eval_text *out)
{
    size_t width = longest_name(summary);
    const char *key, *inner;
    json_t *value, *part;
    json_object_foreach((json_t *)summary, key, value)
    {
        if (strcmp(key, "note") == 0)
            continue;
        if (!json_is_object(value))
            add_figure("", key, value, width, out);
        json_object_foreach(value, inner, part) add_figure(key, inner, part, width, out);
    }
}

/* The cache in the words of the options that made it. */
static void add_cache(const json_t *result, struct eval_text *out)
{
    static const char *const keys[] = {"read", "recall", "share", "store"};
    const char *policy = json_string_value(json_object_get(result, "policy"));
    eval_text_add(out, policy != NULL ? policy : "?");
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const char *text = json_string_value(json_object_get(result, keys[i]));
        if (text != NULL)
            eval_text_printf(out, ", %s %s", keys[i], text);
    }
}

void eval_print_table(const json_t *result, struct eval_text *out)
{
    const char *task = json_string_value(json_object_get(result, "task"));
    const char *model = json_string_value(json_object_get(result, "model"));
    const json_t *summary = json_object_get(result, "summary");
    const char *note = json_string_value(json_object_get(summary, "note"));
    eval_text_printf(out, "%s of %s, cache: ", task != NULL ? task : "result",
                     model != NULL && model[0] != '\0' ? model : "a model without a name");
    add_cache(result, out);
    eval_text_add(out, "\n\n");
    add_row_table(json_object_get(result, "rows"), json_object_get(result, "columns"), out);
    add_summary(summary, out);
    if (note != NULL && note[0] != '\0')
        eval_text_printf(out, "\n%s\n", note);
}

/* ---- CSV ---- */

static void add_field(const char *text, size_t len, struct eval_text *out)
{
    bool quote = false;
    for (size_t i = 0; i < len && !quote; i++)
        quote = text[i] == '\0' || strchr(",\"\r\n", text[i]) != NULL;
    if (!quote) {
        eval_text_add_n(out, text, len);
        return;
    }
    eval_text_add(out, "\"");
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '"')
            eval_text_add(out, "\"");
        eval_text_add_n(out, text + i, 1);
    }
    eval_text_add(out, "\"");
}

static void add_csv_value(const json_t *value, struct eval_text *out)
{
    if (value == NULL || json_is_null(value))
        return;
    if (json_is_string(value)) {
        add_field(json_string_value(value), json_string_length(value), out);
        return;
    }
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(DIGITS));
    if (text != NULL)
        add_field(text, strlen(text), out);
    else
        out->failed = true;
    free(text);
}

void eval_print_csv(const json_t *result, struct eval_text *out)
{
    const json_t *rows = json_object_get(result, "rows"), *row;
    json_t *keys = collect_keys(rows, NULL), *unused;
    const char *key;
    size_t i;
    if (keys == NULL) {
        out->failed = true;
        return;
    }
    const char *gap = "";
    json_object_foreach(keys, key, unused)
    {
        eval_text_add(out, gap);
        add_field(key, strlen(key), out);
        gap = ",";
    }
    if (json_object_size(keys) > 0)
        eval_text_add(out, "\r\n");
    json_array_foreach((json_t *)rows, i, row)
    {
        gap = "";
        json_object_foreach(keys, key, unused)
        {
            eval_text_add(out, gap);
            add_csv_value(json_object_get(row, key), out);
            gap = ",";
        }
        eval_text_add(out, "\r\n");
    }
    json_decref(keys);
}

void eval_print_json(const json_t *result, struct eval_text *out)
{
    eval_text_add_json(out, result, JSON_INDENT(1) | JSON_REAL_PRECISION(DIGITS));
    eval_text_add(out, "\n");
}
