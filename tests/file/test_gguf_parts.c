/*
 * test_gguf_parts.c - a model in several files is the model in one: the same tensors, the same
 * logits. Each way in which parts do not belong together has its sentence.
 */
#define _POSIX_C_SOURCE 200809L

#include "file/gguf_parts.h"
#include "folder.h"
#include "mem_used.h"
#include "model_maker.h"
#include "pith/inspect.h"
#include "status.h"
#include "testing.h"

#define N_PART 3
#define N_VOCAB 50

static struct pi_file whole_file;
static struct pi_gguf whole;

/* The keys of a part that describe the split. */
struct claim {
    uint32_t no, count, n_tensor; /* n_tensor 0: does not say */
    int64_t first, last;          /* tensors of the whole file */
};

static const char *part_name(int32_t no)
{
    static char name[32];
    snprintf(name, sizeof(name), "m-%05d-of-%05d.gguf", no + 1, N_PART);
    return in_folder(name);
}

static void write_part(const char *path, const struct claim *c)
{
    struct pi_gguf_writer w = {0};
    struct pi_new_file file = {0};
    for (int64_t i = 0; i < whole.n_kv && c->no == 0; i++)
        check(pi_gguf_add_kv(&w, &whole.kv[i]), &err);
    check(pi_gguf_add_u32(&w, "split.no", c->no), &err);
    check(pi_gguf_add_u32(&w, "split.count", c->count), &err);
    if (c->n_tensor > 0)
        check(pi_gguf_add_u32(&w, "split.tensors.count", c->n_tensor), &err);
    for (int64_t i = c->first; i < c->last; i++) {
        const struct pi_gguf_tensor *t = &whole.tensor[i];
        check(pi_gguf_add_tensor(&w, t->name, t->n_dim, t->ne, t->type, t->size), &err);
    }
    check(pi_new_file_open(path, &file, &err), &err);
    check(pi_gguf_write_head(&w, &file, &err), &err);
    for (int64_t i = c->first; i < c->last; i++)
        check(pi_gguf_write_tensor(&w, &file, whole.tensor[i].data, whole.tensor[i].size, &err),
              &err);
    check(pi_new_file_commit(&file, &err), &err);
    pi_gguf_writer_free(&w);
}

/* The parts as they should be: the last but one without tensors. */
static void write_parts(void)
{
    for (int32_t no = 0; no < N_PART; no++) {
        int64_t cut = whole.n_tensor / 2, last = no == 0 ? cut : whole.n_tensor;
        struct claim c = {(uint32_t)no, N_PART, (uint32_t)whole.n_tensor, no == 0 ? 0 : cut,
                          no == 1 ? cut : last};
        write_part(part_name(no), &c);
    }
}

static void make(void)
{
    make_folder();
    check(model_make_of("arch=qwen3moe layers=2 width=64 heads=2 kv_heads=1 head_dim=32 "
                        "experts=4 expert_ff=32 type=Q8_0 vocab=50",
                        in_folder("whole.gguf"), &err),
          &err);
    check(pi_file_map(in_folder("whole.gguf"), &whole_file, &err), &err);
    check(pi_gguf_parse(&whole, whole_file.data, whole_file.size, "whole", &err), &err);
}

static void unmake(void)
{
    pi_gguf_free(&whole);
    pi_file_unmap(&whole_file);
    remove_folder();
}

TEST_GROUP(make, unmake);

/* ---- comparisons ---- */

static uint64_t hash_of(const char *path)
{
    const int32_t tokens[] = {3, 14, 15, 9, 2, 6};
    pith_model *model = model_at(path);
    pith_engine *e = engine_with(model, (pith_engine_params){.kv_tokens = 64, .n_thread = 1});
    pith_seq *seq = seq_make(e);
    check(pith_seq_eval(seq, tokens, PI_LEN(tokens), &err), &err);
    uint64_t hash = pith_logits_hash(pith_seq_logits(seq), N_VOCAB);
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_model_free(model);
    return hash;
}

TEST(parts_are_the_same_model)
{
    struct pi_gguf g = {0};
    struct pi_gguf_parts parts = {0};
    write_parts();
    check(pi_gguf_open(part_name(0), &g, &parts, &err), &err);
    assert_int_equal(parts.n, N_PART);
    assert_int_equal(g.n_tensor, whole.n_tensor);
    for (int64_t i = 0; i < whole.n_tensor; i++) {
        char name[PI_GGUF_MAX_TENSOR_NAME + 1];
        const struct pi_gguf_tensor *want = &whole.tensor[i];
        snprintf(name, sizeof(name), "%.*s", (int)want->name.len, want->name.data);
        const struct pi_gguf_tensor *t = pi_gguf_find_tensor(&g, name);
        assert_non_null(t);
        assert_int_equal(t->size, want->size);
        assert_memory_equal(t->data, want->data, want->size);
        pi_gguf_drop(&parts, t->data, t->size);
        assert_memory_equal(t->data, want->data, want->size);
    }
    pi_gguf_free(&g);
    pi_gguf_parts_free(&parts);
    assert_true(hash_of(part_name(0)) == hash_of(in_folder("whole.gguf")));
}

/* Of several files the quantiser makes the one that it makes of the whole. */
TEST(quantises_parts_as_it_does_the_whole)
{
    struct pi_file a = {0}, b = {0};
    write_parts();
    check(pith_quantize(part_name(0), in_folder("a.gguf"), "F16", 1, NULL, NULL, &err), &err);
    check(pith_quantize(in_folder("whole.gguf"), in_folder("b.gguf"), "F16", 1, NULL, NULL, &err),
          &err);
    check(pi_file_map(in_folder("a.gguf"), &a, &err), &err);
    check(pi_file_map(in_folder("b.gguf"), &b, &err), &err);
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    pi_file_unmap(&a);
    pi_file_unmap(&b);
}

/* ---- mistakes ---- */

static void refuses(const char *path, const char *sentence)
{
    struct pi_gguf g = {0};
    struct pi_gguf_parts parts = {0};
    assert_int_not_equal(pi_gguf_open(path, &g, &parts, &err), PITH_OK);
    if (strstr(err.message, sentence) == NULL)
        fail_msg("\"%s\" is not in: %s", sentence, err.message);
    assert_int_equal(parts.n, 0);
    assert_int_equal(g.n_tensor, 0);
}

TEST(each_mistake_has_its_sentence)
{
    int64_t cut = whole.n_tensor / 2, n = whole.n_tensor;
    write_parts();
    refuses(part_name(1), "it is part 2 of 3: give the first, ...-00001-of-00003.gguf");
    write_part(in_folder("other.gguf"), &(struct claim){0, N_PART, 0, 0, cut});
    refuses(in_folder("other.gguf"), "the name does not end in -00001-of-00003.gguf");
    write_part(part_name(1), &(struct claim){1, 2, 0, cut, cut});
    refuses(part_name(0), "it is part 2 of 2, where part 2 of 3 is asked");
    write_part(part_name(1), &(struct claim){2, N_PART, 0, cut, cut});
    refuses(part_name(0), "it is part 3 of 3, where part 2 of 3 is asked");
    write_part(part_name(1), &(struct claim){1, N_PART, 0, cut, cut + 1});
    refuses(part_name(0), "is in two parts");
    write_parts();
    write_part(part_name(2), &(struct claim){2, N_PART, 0, cut + 1, n});
    refuses(part_name(0), "split.tensors.count is");
    write_part(part_name(0), &(struct claim){0, 5000, 0, 0, cut});
    refuses(part_name(0), "split.count: 5000 parts are more than 4096");
    write_parts();
    remove(part_name(2));
    refuses(part_name(0), "cannot open");
}

/* Every allocation of opening may fail, and nothing stays behind. */
TEST(every_allocation_may_fail)
{
    struct pi_gguf g = {0};
    struct pi_gguf_parts parts = {0};
    pith_status status = PITH_NOMEM;
    write_parts();
    for (int64_t n = 1; status == PITH_NOMEM; n++) {
        pi_mem_fail_at(n, false);
        status = pi_gguf_open(part_name(0), &g, &parts, &err);
        pi_mem_fail_at(0, false);
    }
    check(status, &err);
    pi_gguf_free(&g);
    pi_gguf_parts_free(&parts);
}
