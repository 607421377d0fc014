/* test_keep_describe.c - the public description of a keep policy's options. */
#include <string.h>

#include "pith/policy.h"
#include "testing.h"

static pith_keep_rules rules_of(const char *keep)
{
    err = (pith_error){0};
    pith_keep_rules rules;
    memset(&rules, 0xff, sizeof(rules));
    if (pith_keep_get_rules(keep, &rules, &err) != PITH_OK)
        fail_msg("%s", err.message);
    return rules;
}

TEST(the_full_cache_has_no_rules)
{
    static const char *const texts[] = {NULL, "none"};
    for (size_t i = 0; i < 2; i++) {
        pith_keep_rules r = rules_of(texts[i]);
        assert_null(r.policy);
        assert_string_equal(r.granularity, "");
        assert_int_equal(r.slack, 0);
        assert_int_equal(r.prefix, 0);
        assert_int_equal(r.sinks, 0);
        assert_int_equal(r.window, 0);
        assert_int_equal(r.segments, 0);
        assert_false(r.pin_prompt);
    }
}

/* A policy's defaults, a preset, and the options after it. */
TEST(tells_defaults_presets_and_what_is_given)
{
    pith_keep_rules r = rules_of("streaming");
    assert_string_equal(r.policy, "streaming");
    assert_string_equal(r.granularity, "layer-head");
    assert_int_equal(r.sinks, 4);
    assert_int_equal(r.slack, 128);
    assert_false(r.pin_prompt);

    r = rules_of("triattention");
    assert_string_equal(r.granularity, "head");
    assert_int_equal(r.window, 0);
    assert_true(r.pin_prompt);

    r = rules_of("triattention:v3,budget=50%,prefix=64");
    assert_string_equal(r.policy, "triattention");
    assert_string_equal(r.granularity, "all");
    assert_int_equal(r.prefix, 64);
    assert_int_equal(r.window, 128);
    assert_int_equal(r.segments, 8);
    assert_int_equal(r.sinks, 0);

    r = rules_of("knorm:granularity=layer,slack=7,sinks=3,pin-prompt=on");
    assert_string_equal(r.granularity, "layer");
    assert_int_equal(r.slack, 7);
    assert_int_equal(r.sinks, 3);
    assert_true(r.pin_prompt);

    r = rules_of("h2o:budget=301");
    assert_int_equal(r.window, 150);
    r = rules_of("h2o:budget=301,window=160");
    assert_int_equal(r.window, 160);
}

TEST(refuses_bad_options_and_leaves_the_rules)
{
    pith_error other;
    pith_keep_rules r = {.slack = 5};
    static const char *const texts[] = {"stream", "streaming:", "knorm:slack=x", "triattention:v9",
                                        "streaming:budget=10,window=20"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_int_equal(pith_keep_get_rules(texts[i], &r, &err), PITH_INVALID);
        assert_int_equal(pith_policy_check(PITH_KEEP, texts[i], &other), PITH_INVALID);
        assert_string_equal(err.message, other.message);
        assert_int_equal(pith_keep_get_rules(texts[i], &r, NULL), PITH_INVALID);
    }
    assert_int_equal(r.slack, 5); /* untouched */
    assert_int_equal(pith_keep_get_rules("knorm", NULL, &err), PITH_INVALID);
}
