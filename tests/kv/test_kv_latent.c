/*
 * test_kv_latent.c - lanes whose values are parts of their keys, beside lanes that store the same
 * values again. Attention, scores, norms, sums and copies have the same bits at every processor
 * level. The bytes are the keys' alone.
 */
#define _POSIX_C_SOURCE 200809L

#include "attend_check.h"
#include "base/os.h"
#include "file/sum.h"
#include "folder.h"
#include "kv/snapshot.h"

TEST_GROUP(make_folder, remove_folder);

/* Keys of 160 dimensions; the last 96 are the value. The groups of the turbo types are 32 long in
   both, so a lane that stores values codes them in the same way. */
#define DIM_K 160
#define V_FROM 64
#define DIM_V (DIM_K - V_FROM)
#define LEN 150

static struct kv_geometry shape(enum kv_type type, bool latent, uint32_t index)
{
    struct kv_geometry g = geometry(DIM_K, DIM_V, 32, type, type, index);
    g.v_in_k = latent ? V_FROM : 0;
    return g;
}

/* A lane of some entries; its values, where they are stored, are parts of keys, too. */
static void fill(struct kv_seq *seq, uint64_t rng)
{
    float *k = random_rows(&rng, LEN * DIM_K, 1.0f);
    assert_int_equal(kv_seq_reserve(seq, LEN, NULL), PITH_OK);
    kv_seq_append(seq, 0, 0, 0, LEN, k, DIM_K, k + V_FROM, DIM_K);
    test_free(k);
}

static void open_pair(struct fixture f[2], enum kv_type type, uint32_t index, bool norms)
{
    for (int i = 0; i < 2; i++) {
        struct kv_geometry g = shape(type, i == 1, i == 1 ? index : index | KV_INDEX_ROWS);
        cache_open(&f[i], &g, LEN);
        if (norms) {
            kv_seq_free(f[i].seq);
            kv_cache_set_marks(f[i].cache, 0, true);
            assert_int_equal(kv_seq_create(f[i].cache, &f[i].seq, NULL), PITH_OK);
        }
        fill(f[i].seq, 7);
    }
}

static void close_pair(struct fixture f[2])
{
    for (int i = 0; i < 2; i++)
        close_all(&f[i]);
}

static void same_attention(enum kv_type type, int32_t n_tok, int32_t n_group, const char *level)
{
    struct fixture f[2];
    open_pair(f, type, 0, false);
    for (int i = 0; i < 2; i++) {
        uint64_t rng = 3;
        queries(&f[i], &rng, n_tok, n_group, LEN - n_tok - 5);
        attend(&f[i], 0, n_tok, f[i].out, NULL);
    }
    assert_same_bits(f[1].out, f[0].out, out_len(&f[0]), level);
    close_pair(f);
}

TEST(attention_has_the_bits_of_values_stored_apart)
{
    static const int32_t rows[][2] = {{1, 1}, {1, 4}, {1, 7}, {1, 16}, {5, 3}, {40, 2}};
    for (int level = 0; level < PI_CPU_N_LEVEL; level++) {
        const char *name = pi_cpu_level_name((enum pi_cpu_level)level);
        if (pith_cpu_level_set(name, NULL) != PITH_OK)
            continue;
        for (int type = 0; type < KV_N_TYPE; type++)
            for (size_t i = 0; i < PI_LEN(rows); i++)
                same_attention((enum kv_type)type, rows[i][0], rows[i][1], name);
    }
}

TEST(every_level_gives_the_same_bits)
{
    for (int type = 0; type < KV_N_TYPE; type++)
        for (int32_t n_group = 1; n_group <= 16; n_group *= 4) {
            uint64_t rng = 5;
            struct kv_geometry g = shape((enum kv_type)type, true, 0);
            struct fixture f;
            cache_open(&f, &g, LEN);
            fill(f.seq, 7);
            queries(&f, &rng, 20, n_group, LEN - 20);
            assert_levels_agree(&f, &rng);
            close_all(&f);
        }
}

/* Some entries, as a read policy lists them. */
TEST(chosen_entries_give_the_same_bits)
{
    int32_t slots[40];
    for (int32_t i = 0; i < 40; i++)
        slots[i] = 3 * i + (i > 20);
    for (int type = 0; type < KV_N_TYPE; type++) {
        struct fixture f[2];
        open_pair(f, (enum kv_type)type, 0, false);
        for (int i = 0; i < 2; i++) {
            uint64_t rng = 3;
            queries(&f[i], &rng, 1, 5, LEN);
            uint8_t *scratch = test_malloc(kv_attend_scratch_bytes(&f[i].cache->g, 5));
            struct kv_attend_job job = {.seq = f[i].seq,
                                        .n_tok = 1,
                                        .n_group = 5,
                                        .pos0 = LEN,
                                        .q = f[i].q,
                                        .q_stride = 5 * DIM_K,
                                        .scale = f[i].scale,
                                        .out = f[i].out,
                                        .out_stride = 5 * DIM_V,
                                        .slots = slots,
                                        .n_slot = 40};
            kv_attend(&job, scratch);
            test_free(scratch);
        }
        assert_same_bits(f[1].out, f[0].out, out_len(&f[0]), "slots");
        close_pair(f);
    }
}

/* Entries that are read as if they were written later: their rotated dimensions come first. */
TEST(shifted_entries_give_the_same_bits)
{
    double freq[V_FROM / 2];
    const struct pi_rope rope = {
        .n_pair = V_FROM / 2, .adjacent = true, .freq = freq, .magnitude = 1};
    for (int32_t i = 0; i < V_FROM / 2; i++)
        freq[i] = pow(100, -2.0 * i / V_FROM);
    for (int type = 0; type < KV_N_TYPE; type++)
        for (int32_t n_group = 3; n_group <= 12; n_group += 9) {
            struct fixture f[2];
            for (int i = 0; i < 2; i++) {
                uint64_t rng = 11;
                struct kv_geometry g =
                    shape((enum kv_type)type, i == 1, i == 1 ? 0 : KV_INDEX_ROWS);
                float *k = random_rows(&rng, 90 * DIM_K, 1.0f);
                cache_open(&f[i], &g, LEN);
                assert_int_equal(kv_seq_reserve(f[i].seq, 90, NULL), PITH_OK);
                kv_seq_append(f[i].seq, 0, 0, 0, 32, k, DIM_K, k + V_FROM, DIM_K);
                kv_seq_append(f[i].seq, 0, 0, 100, 58, k + 32 * DIM_K, DIM_K,
                              k + 32 * DIM_K + V_FROM, DIM_K);
                test_free(k);
                kv_seq_shift(f[i].seq, 0, 0, 32, 41);
                f[i].rope = &rope;
                queries(&f[i], &rng, 2, n_group, 150);
                attend(&f[i], 0, 2, f[i].out, NULL);
            }
            assert_same_bits(f[1].out, f[0].out, out_len(&f[0]), "a delta");
            close_pair(f);
        }
}

/* ---- what else is made of values ---- */

TEST(values_are_read_out_of_keys)
{
    static float a[DIM_V * 32], b[DIM_V * 32];
    for (int type = 0; type < KV_N_TYPE; type++) {
        struct fixture f[2];
        open_pair(f, (enum kv_type)type, KV_INDEX_VALUE_SUM | KV_INDEX_NORM, true);
        for (int32_t s = 0; s < LEN; s++) {
            float key[DIM_K];
            kv_lane_value(f[0].seq, 0, 0, s, a);
            kv_lane_value(f[1].seq, 0, 0, s, b);
            kv_lane_key(f[1].seq, 0, 0, s, key);
            assert_same_bits(b, a, DIM_V, "a value");
            assert_same_bits(key + V_FROM, b, DIM_V, "the same in a key");
        }
        assert_memory_equal(kv_lane_norms(f[0].seq, 0, 0), kv_lane_norms(f[1].seq, 0, 0),
                            LEN * sizeof(uint16_t));
        for (int32_t i = 0; i < kv_lane_runs(f[0].seq, 0, 0); i++) {
            size_t n = (size_t)kv_lane_run(f[0].seq, 0, 0, i).n;
            kv_lane_run_values(f[0].seq, 0, 0, i, a);
            kv_lane_run_values(f[1].seq, 0, 0, i, b);
            assert_same_bits(b, a, n * DIM_V, "values of a run");
        }
        kv_lane_value_sum(f[0].seq, 0, 0, LEN, a);
        kv_lane_value_sum(f[1].seq, 0, 0, LEN, b);
        assert_same_bits(b, a, DIM_V, "a sum of values");
        close_pair(f);
    }
}

/* ---- bytes ---- */

/* A page has keys and positions, each from a multiple of 64 bytes on, and nothing else. */
TEST(a_page_holds_keys_and_positions_alone)
{
    for (int type = 0; type < KV_N_TYPE; type++) {
        struct kv_geometry g = shape((enum kv_type)type, true, 0);
        double row = DIM_K * kv_type_bits((enum kv_type)type, DIM_K) / 8;
        size_t want = (size_t)(g.page_len * row) + (size_t)g.page_len * sizeof(int32_t);
        assert_int_equal(kv_page_bytes(&g), want);
        assert_int_equal(kv_bytes_for_tokens(&g, 64), 2 * want);
    }
}

/* ---- on the way ---- */

static void assert_same_lane(const struct kv_seq *a, const struct kv_seq *b)
{
    float x[DIM_K], y[DIM_K];
    assert_int_equal(kv_lane_len(a, 0, 0), kv_lane_len(b, 0, 0));
    for (int32_t s = 0; s < kv_lane_len(a, 0, 0); s++) {
        assert_int_equal(kv_lane_pos(a, 0, 0, s), kv_lane_pos(b, 0, 0, s));
        kv_lane_key(a, 0, 0, s, x);
        kv_lane_key(b, 0, 0, s, y);
        assert_same_bits(y, x, DIM_K, "a key");
        kv_lane_value(a, 0, 0, s, x);
        kv_lane_value(b, 0, 0, s, y);
        assert_same_bits(y, x, DIM_V, "a value");
    }
}

TEST(saving_swapping_and_compacting_change_no_bit)
{
    for (int type = 0; type < KV_N_TYPE; type++) {
        struct fixture f[2];
        struct kv_seq *loaded = NULL, *fork = NULL;
        struct kv_swapped *away = NULL;
        int32_t slots[60];
        void *extra = NULL;
        size_t extra_size;
        open_pair(f, (enum kv_type)type, 0, false);
        check(kv_seq_save(f[1].seq, "", 0, in_folder("seq"), &err), &err);
        check(kv_seq_fork(f[1].seq, &fork, &err), &err);
        check(kv_seq_load(f[1].cache, in_folder("seq"), &loaded, &extra, &extra_size, &err), &err);
        assert_same_lane(loaded, f[1].seq);
        check(kv_seq_swap_out(loaded, &away, &err), &err);
        check(kv_seq_swap_in(loaded, away, &err), &err);
        assert_same_lane(loaded, f[1].seq);
        for (int32_t i = 0; i < 60; i++)
            slots[i] = 2 * i + 1;
        for (int i = 0; i < 2; i++)
            check(kv_seq_compact(f[i].seq, 0, 0, slots, 60, &err), &err);
        assert_same_lane(f[1].seq, f[0].seq);
        assert_int_equal(kv_lane_len(fork, 0, 0), LEN);
        assert_same_lane(fork, loaded);
        pi_mem_free(extra);
        kv_seq_free(fork);
        kv_seq_free(loaded);
        close_pair(f);
    }
}

/* A file that says another place of values, with the right checksum. */
TEST(refuses_files_with_other_places_of_values)
{
    static const struct {
        int32_t v_in_k;
        pith_status status;
        const char *says;
    } cases[] = {
        {0, PITH_FORMAT, "page_bytes: 5568 is not the 8832 of its shape"},
        {-64, PITH_FORMAT, "v_in_k: -64 is no dimension that values begin at"},
        {65, PITH_FORMAT, "v_in_k: keys of 160 have no 96 dimensions from 65 on"},
        {32, PITH_INVALID, "values begin at dimension 32 of keys, and in the engine at 64"},
    };
    struct fixture f[2];
    struct pi_file file = {0};
    struct kv_seq *loaded = NULL;
    void *extra = NULL;
    size_t extra_size;
    open_pair(f, KV_TYPE_Q8_0, 0, false);
    check(kv_seq_save(f[1].seq, "", 0, in_folder("seq"), &err), &err);
    check(pi_file_map(in_folder("seq"), &file, &err), &err);
    size_t n = file.size;
    uint8_t *bytes = test_malloc(n);
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        memcpy(bytes, file.data, n);
        memcpy(bytes + KV_SNAPSHOT_V_IN_K, &cases[i].v_in_k, sizeof(int32_t));
        uint64_t sum = pi_sum_of(bytes, n - KV_SNAPSHOT_SUM_SIZE);
        memcpy(bytes + n - KV_SNAPSHOT_SUM_SIZE, &sum, sizeof(sum));
        pith_status status =
            kv_snapshot_load(f[1].cache, "file", bytes, n, &loaded, &extra, &extra_size, &err);
        if (status != cases[i].status || strstr(err.message, cases[i].says) == NULL)
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, err.message, cases[i].says);
    }
    assert_int_equal(
        kv_snapshot_load(f[0].cache, "file", file.data, n, &loaded, &extra, &extra_size, &err),
        PITH_INVALID);
    assert_string_equal(err.message, "file: values begin at dimension 64 of keys, and in the "
                                     "engine at 0 (0: they are stored beside keys)");
    test_free(bytes);
    pi_file_unmap(&file);
    close_pair(f);
}

/* To a lane of the same type, and to one of another. */
TEST(copies_hold_the_values)
{
    for (int type = 0; type < KV_N_TYPE; type++)
        for (int to = 0; to < KV_N_TYPE; to++) {
            struct fixture from, onto;
            float x[DIM_K], want[DIM_K];
            struct kv_geometry g = shape((enum kv_type)type, true, 0);
            cache_open(&from, &g, LEN);
            fill(from.seq, 9);
            g = shape((enum kv_type)to, true, KV_INDEX_NORM);
            cache_open(&onto, &g, LEN);
            assert_int_equal(kv_seq_reserve(onto.seq, 3, NULL), PITH_OK);
            const struct kv_copy c = {.from = from.seq, .to = onto.seq};
            kv_seq_copy(&c, (const int32_t[]){4, 77, 140}, 3);
            kv_lane_key(from.seq, 0, 0, 77, want);
            if (type != to) { /* it is stored anew */
                struct fixture again;
                cache_open(&again, &g, LEN);
                append(again.seq, 0, 1, want, NULL);
                kv_lane_key(again.seq, 0, 0, 0, want);
                close_all(&again);
            }
            kv_lane_key(onto.seq, 0, 0, 1, x);
            assert_same_bits(x, want, DIM_K, "a key that was copied");
            kv_lane_value(onto.seq, 0, 0, 1, x);
            assert_same_bits(x, want + V_FROM, DIM_V, "its value");
            close_all(&onto);
            close_all(&from);
        }
}

/* ---- refusals ---- */

static void refused(struct kv_geometry g, const char *sentence)
{
    pith_status status = kv_geometry_check(&g, &err);
    assert_true(status == PITH_UNSUPPORTED || status == PITH_INVALID);
    if (strcmp(err.message, sentence) != 0)
        fail_msg("\"%s\" is not \"%s\"", err.message, sentence);
}

TEST(refuses_types_that_differ)
{
    struct kv_geometry g = shape(KV_TYPE_F16, true, 0);
    g.type_v = KV_TYPE_Q8_0;
    refused(g, "type_v: values of this model are parts of its keys, so that type_v must be type_k "
               "(f16, and edges alike)");
    g = shape(KV_TYPE_F16, true, 0);
    g.edge_k = (struct kv_edge){KV_TYPE_F32, 1, 0};
    refused(g, "type_v: values of this model are parts of its keys, so that type_v must be type_k "
               "(f16, and edges alike)");
    g = shape(KV_TYPE_Q8_0, true, 0);
    g.v_in_k = 48;
    g.dim_v = 112;
    refused(g, "type_v: q8_0 stores blocks of 32 dimensions, and the head size 112 is no multiple");
    g.v_in_k = 16;
    g.dim_v = 96;
    refused(g, "type_k: q8_0 has groups of 32 dimensions, and one of them would hold both rotated "
               "dimensions and values of a latent lane (16 and 96)");
    g = shape(KV_TYPE_TURBO3, true, 0);
    g.dim_k = 128;
    g.dim_v = 64;
    refused(g, "type_k: turbo3 has groups of 128 dimensions, and one of them would hold both "
               "rotated dimensions and values of a latent lane (64 and 64)");
    g.v_in_k = 100;
    refused(g, "v_in_k: keys of 128 have no 64 dimensions from 100 on");
}
