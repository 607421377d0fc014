/* svg_check.c - just enough of XML and of SVG's paths to read a map back. */
#define _POSIX_C_SOURCE 200809L

#include "svg_check.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "testing.h"

#define DEPTH_MAX 16
#define NAME_MAX_LEN 24
#define ATTRIBUTES_MAX 16
#define IDS_MAX 4096

struct reader {
    char stack[DEPTH_MAX][NAME_MAX_LEN];
    int depth;
    int n_root;
    char (*ids)[NAME_MAX_LEN]; /* [IDS_MAX] */
    int n_id;
};

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == ':' || c == '_';
}

static void take_name(const char **at, char *name)
{
    size_t len = 0;
    while (is_name((*at)[len]))
        len++;
    if (len == 0 || len >= NAME_MAX_LEN)
        fail_msg("no name: %.40s", *at);
    memcpy(name, *at, len);
    name[len] = '\0';
    *at += len;
}

static void check_entity(const char *at)
{
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strncmp(at, known[i], strlen(known[i])) == 0)
            return;
    fail_msg("no entity: %.20s", at);
}

static void add_id(struct reader *r, const char *value, size_t len)
{
    assert_true(len > 0 && len < NAME_MAX_LEN && r->n_id < IDS_MAX);
    for (int i = 0; i < r->n_id; i++)
        if (strlen(r->ids[i]) == len && memcmp(r->ids[i], value, len) == 0)
            fail_msg("the id %s stands twice", r->ids[i]);
    memcpy(r->ids[r->n_id], value, len);
    r->ids[r->n_id++][len] = '\0';
}

/* name="value" pairs up to the end of the tag. */
static void take_attributes(struct reader *r, const char **at)
{
    char names[ATTRIBUTES_MAX][NAME_MAX_LEN];
    int n = 0;
    while (**at == ' ') {
        ++*at;
        assert_true(n < ATTRIBUTES_MAX);
        take_name(at, names[n]);
        for (int i = 0; i < n; i++)
            if (strcmp(names[i], names[n]) == 0)
                fail_msg("the attribute %s stands twice", names[n]);
        if (strncmp(*at, "=\"", 2) != 0)
            fail_msg("no value: %.40s", *at);
        const char *value = *at + 2, *end = strchr(value, '"');
        assert_non_null(end);
        for (const char *c = value; c < end; c++) {
            if (*c == '<')
                fail_msg("\"<\" within a value: %.60s", value);
            if (*c == '&')
                check_entity(c);
        }
        if (strcmp(names[n], "id") == 0)
            add_id(r, value, (size_t)(end - value));
        n++;
        *at = end + 1;
    }
}

static void take_tag(struct reader *r, const char **at)
{
    char name[NAME_MAX_LEN];
    bool closing = (*at)[1] == '/', empty = false;
    *at += 1 + closing;
    take_name(at, name);
    if (!closing) {
        take_attributes(r, at);
        empty = **at == '/';
        *at += empty;
    }
    if (**at != '>')
        fail_msg("a tag %s that does not end: %.40s", name, *at);
    ++*at;
    if (closing) {
        assert_true(r->depth > 0);
        r->depth--;
        assert_string_equal(r->stack[r->depth], name);
    } else if (r->depth == 0 && ++r->n_root > 1) {
        fail_msg("a second element: %s", name);
    } else if (!empty) {
        assert_true(r->depth < DEPTH_MAX);
        strcpy(r->stack[r->depth++], name);
    }
}

/* Bytes of the character at *at; fails where it is no UTF-8. */
static size_t character_length(const unsigned char *at)
{
    size_t n = *at < 0x80 ? 1 : *at >= 0xc2 && *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : 4;
    if (*at >= 0x80 && *at < 0xc2)
        fail_msg("byte %02x begins no character", *at);
    for (size_t i = 1; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            fail_msg("byte %02x goes on no character", at[i]);
    return n;
}

void svg_check(const char *svg, size_t len)
{
    struct reader r = {.ids = calloc(IDS_MAX, sizeof(*r.ids))};
    assert_non_null(r.ids);
    assert_int_equal(strlen(svg), len);
    for (const char *at = svg; *at != '\0';) {
        if (*at == '<') {
            take_tag(&r, &at);
            continue;
        }
        if (*at == '&')
            check_entity(at);
        if ((unsigned char)*at < 0x20 && *at != '\n')
            fail_msg("a control character before %.30s", at);
        if (r.depth == 0 && *at != '\n')
            fail_msg("text outside of the element: %.30s", at);
        at += character_length((const unsigned char *)at);
    }
    if (r.depth != 0)
        fail_msg("<%s> is not closed", r.stack[r.depth - 1]);
    assert_int_equal(r.n_root, 1);
    free(r.ids);
}

/* ---- rows ---- */

/* One path of a row at *at, moved behind it; returns the pieces so far. */
static int32_t take_path(const char **at, struct svg_piece *pieces, int32_t n, int32_t cap)
{
    int level, used, begin, width;
    double y;
    if (sscanf(*at, "<path class=\"k%d\" d=\"M%d %lfh%d%n", &level, &begin, &y, &width, &used) != 4)
        fail_msg("no path: %.60s", *at);
    for (;;) {
        assert_true(n < cap && begin >= 0 && width > 0 && level >= 1 && level <= 8);
        pieces[n++] = (struct svg_piece){level, begin, begin + width};
        *at += used;
        int end = begin + width;
        if (sscanf(*at, "m%d 0h%d%n", &begin, &width, &used) != 2)
            break;
        assert_true(begin > 0); /* otherwise the two would be one */
        begin += end;
    }
    if (strncmp(*at, "\"/>", 3) != 0)
        fail_msg("a path that does not end: %.60s", *at);
    *at += 3;
    return n;
}

int32_t svg_row(const char *svg, const char *id, struct svg_piece *pieces, int32_t cap)
{
    char opening[64];
    int32_t n = 0;
    snprintf(opening, sizeof(opening), "<g id=\"%s\"><title>", id);
    const char *begin = strstr(svg, opening);
    if (begin == NULL)
        fail_msg("no row %s", id);
    begin = strstr(begin, "</title>") + strlen("</title>");
    /* A copy: sscanf looks for the end of its text every time. */
    char *row = strndup(begin, (size_t)(strstr(begin, "</g>") - begin));
    assert_non_null(row);
    for (const char *at = row; *at != '\0';)
        n = take_path(&at, pieces, n, cap);
    free(row);
    return n;
}
