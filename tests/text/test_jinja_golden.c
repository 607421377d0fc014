/*
 * test_jinja_golden.c - templates of real models, rendered as Python's jinja2 renders them: the
 * committed hashes of tests/golden/jinja.txt (scripts/golden/jinja.py) against our own prompts. The
 * templates are test data; without them the test says so and skips. Of each template it prints the
 * first prompt that differs.
 */
#include <string.h>

#include "cli/sha256.h"
#include "testing.h"
#include "text/template/jinja.h"
#include "text/value/jinja_json.h"

#define GOLDEN PITH_SOURCE_DIR "/tests/golden/jinja.txt"
#define CHATS PITH_SOURCE_DIR "/tests/golden/jinja_chats.jsonl"
#define CHAT_MAX 128
#define NOW INT64_C(1741529106) /* 2025-03-09 14:05:06 */

static char *read_file(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("%s cannot be read", path);
    fseek(file, 0, SEEK_END);
    *len = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*len + 1);
    assert_int_equal(fread(data, 1, *len, file), *len);
    data[*len] = 0;
    fclose(file);
    return data;
}

struct chats {
    char *text; /* owned */
    const char *line[CHAT_MAX];
    size_t len[CHAT_MAX], n;
};

static void read_chats(struct chats *c)
{
    size_t len;
    c->text = read_file(CHATS, &len);
    for (char *at = c->text, *end; at < c->text + len; at = end + 1, c->n++) {
        assert_true(c->n < CHAT_MAX);
        end = strchr(at, '\n');
        c->line[c->n] = at;
        c->len[c->n] = (size_t)(end - at);
    }
}

struct line {
    const char *text;
    size_t len;
};

static void fill(void *user, struct jinja_heap *h, struct jinja_value variables)
{
    const struct line *line = user;
    struct jinja_value chat = jinja_json_read(h, line->text, line->len);
    if (jinja_failed(h))
        return;
    const struct jinja_dict *d = jinja_dict_find(h, chat.u.dict, "variables")->u.dict;
    for (size_t i = 0; i < d->n; i++)
        jinja_dict_set(h, variables.u.dict, d->pair[i].key, d->pair[i].value);
}

static pith_status render(const struct jinja_template *t, const struct chats *chats, size_t i,
                          struct jinja_text *out, pith_error *why)
{
    static const int64_t now = NOW;
    struct line line = {chats->line[i], chats->len[i]};
    return jinja_render(t, fill, &line, &(struct jinja_given){.now = &now}, out, why);
}

/* The result as the golden file writes it. */
static void describe(const struct jinja_template *t, const struct chats *chats, size_t i,
                     char out[65], pith_error *why)
{
    struct jinja_text text;
    *why = (pith_error){0};
    if (render(t, chats, i, &text, why) == PITH_OK) {
        sha256(text.data, text.len, out);
        out[16] = 0;
        jinja_text_free(&text);
        return;
    }
    /* Our own sentences begin with this prefix; the message of a template's raise does not. */
    if (strncmp(why->message, "chat template: ", 15) == 0) {
        strcpy(out, "!");
        return;
    }
    char hash[65];
    sha256(why->message, strlen(why->message), hash);
    snprintf(out, 65, "=%.8s", hash);
}

static void show(const struct jinja_template *t, const struct chats *chats, size_t i)
{
    struct jinja_text text;
    if (render(t, chats, i, &text, &err) == PITH_OK) {
        print_message("%.*s\n", (int)text.len, text.data);
        jinja_text_free(&text);
    }
}

static char lacks[128]; /* a template that is not there; "": all are */

/* Compares a template's line; returns how many differ. */
static int check_template(const struct chats *chats, char *line, int *n_checked)
{
    char file[128], hash[65], got[65];
    char *name = strtok(line, " "), *want_hash = strtok(NULL, " ");
    size_t len;
    int n_bad = 0;
    snprintf(file, sizeof(file), "templates/%s.jinja", name);
    const char *path = test_data_find(file);
    if (path == NULL) {
        snprintf(lacks, sizeof(lacks), "%s", file);
        return 0;
    }
    char *text = read_file(path, &len);
    sha256(text, len, hash);
    if (strcmp(hash, want_hash) != 0)
        fail_msg("%s is not the file that the golden file was made from", path);
    struct jinja_template *t;
    err = (pith_error){0};
    if (jinja_template_parse(text, len, &t, &err) != PITH_OK)
        fail_msg("%s: %s", name, err.message);
    for (size_t i = 0; i < chats->n; i++, ++*n_checked) {
        char *want = strtok(NULL, " ");
        describe(t, chats, i, got, &err);
        if (want != NULL && strcmp(got, want) == 0)
            continue;
        print_message("%s, conversation %zu: %s, should be %s; %s\n", name, i + 1, got,
                      want != NULL ? want : "there", err.message);
        if (n_bad++ == 0)
            show(t, chats, i);
    }
    assert_null(strtok(NULL, " "));
    jinja_template_free(t);
    free(text);
    return n_bad;
}

TEST(renders_real_templates_as_jinja2_does)
{
    static struct chats chats;
    size_t len;
    int n_template = 0, n_checked = 0, n_bad = 0;
    read_chats(&chats);
    assert_true(chats.n >= 20);
    char *golden = read_file(GOLDEN, &len);
    for (char *at = golden, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, n_template++) {
        *end = 0;
        n_bad += check_template(&chats, at, &n_checked);
    }
    print_message("%d templates, %d prompts, %d differ\n", n_template, n_checked, n_bad);
    assert_true(n_template >= 70);
    assert_int_equal(n_bad, 0);
    free(golden);
    free(chats.text);
    if (lacks[0] != '\0')
        test_data(lacks);
}
