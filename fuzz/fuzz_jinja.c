/*
 * fuzz_jinja.c - any text as a chat template, rendered with any JSON: the input is the template, a
 * zero byte, the variables. A finding is a sanitizer's report, a leak, a failure without a
 * sentence, a prompt above the limit, or two runs that differ.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "text/template/jinja.h"
#include "text/value/jinja_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

struct json {
    const char *text;
    size_t len;
};

static void fill(void *user, struct jinja_heap *h, struct jinja_value variables)
{
    const struct json *json = user;
    struct jinja_value all = jinja_json_read(h, json->text, json->len);
    for (size_t i = 0; !jinja_failed(h) && all.kind == JINJA_DICT && i < all.u.dict->n; i++)
        jinja_dict_set(h, variables.u.dict, all.u.dict->pair[i].key, all.u.dict->pair[i].value);
}

static pith_status render(const struct jinja_template *t, struct json *json, struct jinja_text *out)
{
    static const int64_t now = 1741529106;
    const struct jinja_limits limits = {
        .steps = 100000, .depth = 300, .output = 1 << 20, .memory = 32 << 20};
    const struct jinja_given given = {.now = &now, .limits = &limits};
    pith_error err = {0};
    pith_status status = jinja_render(t, fill, json, &given, out, &err);
    require(status == PITH_OK ? out->len <= limits.output
                              : err.status == status && err.message[0] != 0);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
    size_t len = end != NULL ? (size_t)(end - data) : size, left = end != NULL ? size - len - 1 : 0;
    char *text = malloc(len + 1), *variables = malloc(left + 1);
    struct jinja_template *t = NULL;
    pith_error err = {0};
    memcpy(text, data, len);
    memcpy(variables, data + size - left, left);
    struct json json = {variables, left};
    if (jinja_template_parse(text, len, &t, &err) != PITH_OK) {
        require(err.message[0] != 0 && err.status != PITH_OK);
    } else {
        struct jinja_text out[2];
        memset(text, 0x55, len); /* the tree must not need the text */
        pith_status status[2] = {render(t, &json, &out[0]), render(t, &json, &out[1])};
        require(status[0] == status[1]);
        if (status[0] == PITH_OK) {
            require(out[0].len == out[1].len && memcmp(out[0].data, out[1].data, out[0].len) == 0);
            jinja_text_free(&out[0]);
            jinja_text_free(&out[1]);
        }
    }
    jinja_template_free(t);
    free(text);
    free(variables);
    require(pi_mem_used(PI_MEM_MODEL) == 0 && pi_mem_used(PI_MEM_OTHER) == 0);
    return 0;
}
