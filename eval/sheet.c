/*
 * sheet.c - puts files of page/ and JSON into the places of page/sheet.html.
 *
 * The JSON is ASCII without "<", so nothing in it ends the element that it stands in, whatever
 * files of results or names of models hold.
 */
#include "sheet.h"

#include <page.h>
#include <stdlib.h>
#include <string.h>

json_t *sheet_text(const char *text)
{
    char *utf8 = eval_utf8(text);
    json_t *value = utf8 != NULL ? json_string(utf8) : NULL;
    free(utf8);
    return value;
}

static void add_json(struct eval_text *t, const char *json)
{
    for (const char *end; (end = strchr(json, '<')) != NULL; json = end + 1) {
        eval_text_add_n(t, json, (size_t)(end - json));
        eval_text_add(t, "\\u003c");
    }
    eval_text_add(t, json);
}

/* The file with a name of len bytes; "" for none. */
static const char *find_file(const char *name, size_t len)
{
    for (size_t i = 0; i < page_n_file; i++)
        if (strlen(page_files[i].name) == len && memcmp(page_files[i].name, name, len) == 0)
            return page_files[i].data;
    return "";
}

/* Each "{{NAME}}" becomes the file of that name, and "{{data}}" the JSON. */
static void fill(struct eval_text *t, const char *sheet, const char *json)
{
    for (const char *at; (at = strstr(sheet, "{{")) != NULL;) {
        const char *name = at + 2, *end = strstr(name, "}}");
        size_t len = (size_t)(end - name);
        eval_text_add_n(t, sheet, (size_t)(at - sheet));
        if (len == strlen("data") && memcmp(name, "data", len) == 0)
            add_json(t, json);
        else
            eval_text_add(t, find_file(name, len));
        sheet = end + 2;
    }
    eval_text_add(t, sheet);
}

pith_status sheet_write(json_t *data, struct eval_text *html, pith_error *err)
{
    const size_t flags = JSON_ENSURE_ASCII | JSON_COMPACT | JSON_REAL_PRECISION(12);
    const char name[] = "sheet.html";
    char *json = data != NULL ? json_dumps(data, flags) : NULL;
    json_decref(data);
    if (json != NULL)
        fill(html, find_file(name, strlen(name)), json);
    bool ok = json != NULL && !html->failed;
    free(json);
    return ok ? PITH_OK : eval_fail(err, PITH_NOMEM, "no memory for the page");
}
