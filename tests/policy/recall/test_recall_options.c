/*
 * test_recall_options.c - the options of recall: the listing, each refusal and its sentence, the
 * guests' share of every kind of budget, and the question of a message.
 */
#include <string.h>

#include "policy/recall/recall.h"
#include "status.h"
#include "testing.h"

#include "pith/policy.h"

static const struct kv_geometry shape = {
    .n_layer = 3,
    .n_head = 2,
    .dim_k = 32,
    .dim_v = 32,
    .page_len = 16,
    .type_k = KV_TYPE_F16,
    .type_v = KV_TYPE_F16,
};

static struct recall_config parse(const char *text)
{
    struct recall_config c;
    check(recall_config_parse(text, &c, &err), &err);
    return c;
}

TEST(reads_options_with_their_units)
{
    assert_int_equal(parse(NULL).kind, RECALL_NONE);
    assert_int_equal(parse("").kind, RECALL_NONE);
    assert_int_equal(parse("none").kind, RECALL_NONE);
    struct recall_config c = parse("kv");
    assert_int_equal(c.kind, RECALL_KV);
    assert_int_equal(c.kv.ram, -1); /* the rest of the budget */
    assert_int_equal(c.kv.size, (int64_t)4 << 30);
    assert_string_equal(c.kv.file, "");
    assert_int_equal(c.kv.type, RECALL_PACKED);
    assert_int_equal(c.kv.take.unit, POLICY_UNIT_SHARE);
    assert_int_equal(c.kv.take.value, 250000);
    assert_int_equal(c.kv.score, RECALL_ATTENTION);
    assert_int_equal(c.kv.combine, RECALL_MAX);
    assert_int_equal(c.kv.fade, 6);
    assert_true(c.kv.ask == 0.3);
    c = parse("kv:ram=1.5GiB,file=/tmp/a:b,size=10MB,type=q8_0,take=100,score=bounds,block=1,"
              "last=7,every=3,combine=sum,fade=0,ask=0");
    assert_int_equal(c.kv.ram, (int64_t)3 << 29);
    assert_string_equal(c.kv.file, "/tmp/a:b");
    assert_int_equal(c.kv.size, 10000000);
    assert_int_equal(c.kv.type, 1 + KV_TYPE_Q8_0);
    assert_int_equal(c.kv.take.unit, POLICY_UNIT_TOKENS);
    assert_int_equal(c.kv.take.value, 100);
    assert_int_equal(c.kv.score, RECALL_BOUNDS);
    assert_int_equal(c.kv.block, 1);
    assert_int_equal(c.kv.last, 7);
    assert_int_equal(c.kv.every, 3);
    assert_int_equal(c.kv.combine, RECALL_SUM);
    assert_int_equal(c.kv.fade, 0);
    assert_true(c.kv.ask == 0.0);
    c = parse("text:db=/tmp/x.db,session=a b,alpha=0.25,top=3,floor=0,ttl=0");
    assert_int_equal(c.kind, RECALL_TEXT);
    assert_string_equal(c.text.db, "/tmp/x.db");
    assert_string_equal(c.text.session, "a b");
    assert_true(c.text.alpha == 0.25 && c.text.floor == 0.0);
    assert_int_equal(c.text.top, 3);
    assert_int_equal(c.text.chars, 8000);
    assert_int_equal(c.text.bleed, 32);
    assert_int_equal(c.text.ttl, 0);
}

/* Every storage type has its number. */
TEST(reads_every_storage_type)
{
    for (int32_t i = 0; i < KV_N_TYPE; i++) {
        char text[64];
        snprintf(text, sizeof(text), "kv:type=%s", kv_type_name((enum kv_type)i));
        assert_int_equal(parse(text).kv.type, 1 + i);
    }
}

TEST(refuses_wrong_options_with_a_sentence)
{
    static const char *const cases[][2] = {
        {"vk", "recall: \"vk\" is not a policy (none, kv, text)"},
        {"kv:ram=64", "recall: ram: \"64\" is no size (64MiB; B, kB, MB, GB, KiB, MiB, GiB)"},
        {"kv:take=1MiB", "recall: take: 1048576 bytes: what comes back is a share of the keep "
                         "budget (25%) or a number of entries of a lane (128)"},
        {"kv:take=100%", "recall: take: 100% of the keep budget leaves nothing to keep"},
        {"kv:last=0", "recall: last: 0 is not in 1..8192"},
        {"kv:score=best",
         "recall: score: \"best\" is none of attention, quoka, bounds, triattention"},
        {"kv:score=triattention", "recall: score: triattention needs the model's statistics "
                                  "(stats=FILE, made by pith calibrate)"},
        {"kv:stats=a.stats", "recall: stats: a.stats: only score=triattention reads statistics"},
        {"kv:ram=0B", "recall: ram: 0 bytes and no file: nothing that is evicted could come back"},
        {"kv:", "recall: \"kv:\" ends where options should begin"},
        {"text:top=65", "recall: top: 65 is not in 1..64"},
        {"text:db=a,url=http://b", "recall: url: http://b: an outside store takes the place of a "
                                   "file, and db is a"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        assert_int_equal(pith_policy_check(PITH_RECALL, cases[i][0], &err), PITH_INVALID);
        assert_string_equal(err.message, cases[i][1]);
    }
    assert_int_equal(pith_policy_check(PITH_RECALL, NULL, NULL), PITH_OK);
}

TEST(lists_both_forms_and_their_parameters)
{
    pith_policy_info info;
    for (int32_t i = 0; pith_policy_get(PITH_RECALL, i, &info) == PITH_OK; i++) {
        pith_param_info p;
        char text[512];
        assert_true(i < 2 && info.summary[0] != '\0' && info.n_param > 5);
        assert_int_equal(info.n_preset, 0);
        for (int32_t j = 0; j < info.n_param; j++) {
            assert_int_equal(pith_policy_get_param(PITH_RECALL, i, j, &p), PITH_OK);
            assert_true(p.help[0] != '\0' && !p.shared);
            snprintf(text, sizeof(text), "%s:%s=%s", info.name, p.key, p.fallback);
            if (p.fallback[0] != '\0')
                check(pith_policy_check(PITH_RECALL, text, &err), &err);
        }
        assert_int_equal(pith_policy_get_param(PITH_RECALL, i, info.n_param, &p), PITH_NOT_FOUND);
        assert_int_equal(pith_policy_get_param(PITH_RECALL, i, -1, &p), PITH_NOT_FOUND);
    }
    assert_int_equal(pith_policy_get(PITH_RECALL, 2, &info), PITH_NOT_FOUND);
    assert_int_equal(pith_policy_get(PITH_RECALL, -1, &info), PITH_NOT_FOUND);
}

/* ---- the guests' share ---- */

static struct keep_config fit_keep(const char *text)
{
    struct keep_config keep;
    check(keep_config_parse(text, &keep, &err), &err);
    check(keep_config_fit(&keep, &shape, &err), &err);
    return keep;
}

/* Lanes and guests together are the lanes of the whole budget, and in bytes no more. */
TEST(guests_and_lanes_share_the_budget)
{
    static const char *const keeps[] = {
        "streaming:budget=400,slack=16",
        "knorm:budget=50%,slack=16",
        "knorm:budget=100KiB,slack=16",
        "knorm:budget=100KiB,slack=16,layers=3/2/1",
        "pyramidkv:budget=300,slack=16",
        "pyramidkv:budget=120KiB,slack=16,window=8",
        "adakv:budget=120KiB,slack=16,window=8",
        "streaming:budget=100KiB,slack=16,sinks=4",
        "knorm:budget=400,slack=16,layers=2/1/1,heads=1/3",
    };
    static const char *const recalls[] = {"kv", "kv:take=10%", "kv:take=90%", "kv:take=40"};
    for (size_t i = 0; i < PI_LEN(keeps); i++)
        for (size_t j = 0; j < PI_LEN(recalls); j++) {
            const struct keep_config whole = fit_keep(keeps[i]);
            struct keep_config keep = whole;
            struct recall_config c = parse(recalls[j]);
            pith_status status = recall_config_fit(&c, &shape, &keep, &err);
            if (status != PITH_OK) { /* a sentence that says what does not fit */
                assert_int_equal(status, PITH_INVALID);
                assert_non_null(strstr(err.message, "recall: take: "));
                continue;
            }
            bool bytes = whole.rules.budget.unit == POLICY_UNIT_BYTES;
            for (int32_t n = 1; n < 3000; n += n < 40 ? 1 : 97) {
                struct keep_point at = {n, 0, 0.0, 0};
                for (int32_t l = 0; l < shape.n_layer; l++)
                    for (int32_t h = 0; h < shape.n_head; h++) {
                        int32_t a = keep_lane_budget_at(&whole, l, h, at);
                        int32_t b = keep_lane_budget_at(&keep, l, h, at);
                        int32_t take = recall_take_at(&c, &keep, &shape, l, h, at);
                        assert_true(take >= 0 && b >= 1);
                        assert_true(bytes ? b + take <= a && take % 16 == 0 : b + take == a);
                    }
                int64_t all = keep_bytes_at(&keep, &shape, n) +
                              recall_bytes_at(&c, &keep, &shape, (struct keep_point){n, 0, 0.0, 0});
                if (bytes && all > whole.rules.budget.value)
                    fail_msg("%s, %s: %lld bytes at %d tokens", keeps[i], recalls[j],
                             (long long)all, n);
            }
        }
}

TEST(refuses_what_does_not_go_together)
{
    static const char *const cases[][3] = {
        {"none", "kv", "recall: there is no keep policy that evicts anything"},
        {"none", "text", "recall: there is no keep policy that evicts anything"},
        {"knorm:budget=50%", "kv:take=40",
         "recall: take: 40 entries of a keep budget that is a share of the tokens: a share of it "
         "is "
         "needed (25%)"},
        {"knorm:budget=100", "kv:take=100",
         "recall: take: guests leave nothing of the keep budget of 100 entries"},
        {"knorm:budget=100,window=80", "kv",
         "recall: take: guests leave 75 of the budget of 100 entries: keep: a budget of 75 entries "
         "is smaller than the 80 that are protected: the first 0 and the last 80"},
        {"knorm:budget=2", "kv:take=10%",
         "recall: take: of the keep budget of 2 entries, 2 are left to keep, and the rest holds no "
         "entry of a lane"},
    };
    for (size_t i = 0; i < PI_LEN(cases); i++) {
        struct keep_config keep = fit_keep(cases[i][0]);
        struct recall_config c = parse(cases[i][1]);
        assert_int_equal(recall_config_fit(&c, &shape, &keep, &err), PITH_INVALID);
        assert_string_equal(err.message, cases[i][2]);
    }
}
