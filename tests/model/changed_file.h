/*
 * changed_file.h - files of model_maker.h with one key or tensor changed, for tests of loading and
 * its errors. For one file of a test program.
 */
#ifndef PI_TEST_CHANGED_FILE_H
#define PI_TEST_CHANGED_FILE_H

#include <fnmatch.h>
#include <stdio.h>

#include "file/gguf.h"
#include "folder.h"
#include "model_maker.h"
#include "tensor/dtype_table.h"

/* The difference between a file and the maker's file. */
struct change {
    const char *drop; /* key or tensor, or a pattern of names as for file names */
    const char *drop_too;
    const char *extra; /* a tensor of one float */
    const char *key;   /* u32, or f32 where number is not 0 */
    uint32_t value;
    float number;
    const char *tensor; /* whose dimensions are these, */
    int64_t ne[3];
    uint8_t byte; /* or whose first byte is this, if it is not 0 */
};

static inline bool is_name(struct pi_str a, const char *b)
{
    return b != NULL && a.len == strlen(b) && memcmp(a.data, b, a.len) == 0;
}

static inline bool is_dropped(struct pi_str name, const char *drop)
{
    char text[128];
    snprintf(text, sizeof(text), "%.*s", (int)name.len, name.data);
    return drop != NULL && fnmatch(drop, text, 0) == 0;
}

static inline void put_keys(struct pi_gguf_writer *w, const struct pi_gguf *g,
                            const struct change *c)
{
    for (int64_t i = 0; i < g->n_kv; i++)
        if (!is_dropped(g->kv[i].key, c->drop) && !is_name(g->kv[i].key, c->key))
            check(pi_gguf_add_kv(w, &g->kv[i]), &err);
    if (c->key != NULL && c->number != 0)
        check(pi_gguf_add_f32(w, c->key, c->number), &err);
    else if (c->key != NULL)
        check(pi_gguf_add_u32(w, c->key, c->value), &err);
}

/* The tensors of the file, again; sizes follow from the declared shapes. */
static inline void put_tensors(struct pi_gguf_writer *w, struct pi_new_file *file,
                               const struct pi_gguf *g, const struct change *c, bool writing)
{
    static uint8_t data[1 << 20];
    for (int64_t i = 0; i < g->n_tensor; i++) {
        const struct pi_gguf_tensor *t = &g->tensor[i];
        bool meant = is_name(t->name, c->tensor);
        int64_t ne[4] = {t->ne[0], t->ne[1], t->ne[2], 1};
        size_t size = t->size;
        if (is_dropped(t->name, c->drop) || is_dropped(t->name, c->drop_too))
            continue;
        if (meant && c->byte == 0) {
            memcpy(ne, c->ne, sizeof(c->ne));
            size =
                size / (size_t)(t->ne[0] * t->ne[1] * t->ne[2]) * (size_t)(ne[0] * ne[1] * ne[2]);
        }
        assert_true(size <= sizeof(data) && t->size <= sizeof(data));
        memcpy(data, t->data, t->size);
        if (meant && c->byte != 0)
            data[0] = c->byte;
        if (writing)
            check(pi_gguf_write_tensor(w, file, data, size, &err), &err);
        else
            check(pi_gguf_add_tensor(w, t->name, t->n_dim, ne, t->type, size), &err);
    }
    if (c->extra == NULL)
        return;
    memset(data, 0, sizeof(float));
    if (writing)
        check(pi_gguf_write_tensor(w, file, data, sizeof(float), &err), &err);
    else
        check(pi_gguf_add_tensor(w, (struct pi_str){c->extra, strlen(c->extra)}, 1,
                                 (int64_t[4]){1, 1, 1, 1}, PI_DTYPE_F32, sizeof(float)),
              &err);
}

/* The maker's file of these words, with a change. */
static inline const char *changed(const char *words, const struct change *c)
{
    struct pi_file file = {0};
    struct pi_gguf g = {0};
    struct pi_gguf_writer w = {0};
    struct pi_new_file out = {0};
    check(model_make_of(words, in_folder("made.gguf"), &err), &err);
    check(pi_file_map(in_folder("made.gguf"), &file, &err), &err);
    check(pi_gguf_parse(&g, file.data, file.size, "made", &err), &err);
    put_keys(&w, &g, c);
    put_tensors(&w, &out, &g, c, false);
    check(pi_new_file_open(in_folder("changed.gguf"), &out, &err), &err);
    check(pi_gguf_write_head(&w, &out, &err), &err);
    put_tensors(&w, &out, &g, c, true);
    check(pi_new_file_commit(&out, &err), &err);
    pi_gguf_writer_free(&w);
    pi_gguf_free(&g);
    pi_file_unmap(&file);
    return in_folder("changed.gguf");
}

/* A change after which a file is refused, with this sentence. */
struct mistake {
    const char *words;
    struct change c;
    const char *sentence;
};

static inline void check_mistakes(const struct mistake *mistakes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        pith_model *m = NULL;
        pith_status status =
            pith_model_load(changed(mistakes[i].words, &mistakes[i].c), NULL, &m, &err);
        if (status == PITH_OK)
            fail_msg("no mistake is found, not \"%s\"", mistakes[i].sentence);
        assert_true(status == PITH_FORMAT || status == PITH_UNSUPPORTED);
        if (strcmp(err.message, mistakes[i].sentence) != 0)
            fail_msg("\"%s\" is not \"%s\"", err.message, mistakes[i].sentence);
    }
}

#endif
