/*
 * `pith policies`: --keep accepts every policy that it lists.
 */
#define _POSIX_C_SOURCE 200809L

#include <jansson.h>
#include <string.h>

#include "testing.h"

#include "command.h"
#include "pith/policy.h"

TEST(lists_every_policy_and_preset)
{
    pith_policy_info policy;
    pith_preset_info preset;
    struct said s = command(NULL, "policies", NULL);
    expect_status(&s, 0);
    for (int32_t i = 0; pith_policy_get(PITH_KEEP, i, &policy) == PITH_OK; i++) {
        expect_word(s.out, policy.name);
        for (int32_t j = 0; pith_policy_get_preset(PITH_KEEP, i, j, &preset) == PITH_OK; j++) {
            char name[64];
            snprintf(name, sizeof(name), "\n    :%s ", preset.name);
            expect_word(s.out, name);
        }
    }
    expect_word(s.out, "arXiv 2309.17453");
    expect_word(s.out, "granularity");
    for (const char *line = s.out, *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
        assert_true(end - line <= 100);
}

TEST(tells_everything_of_one_policy)
{
    struct said s = command(NULL, "policies", "triattention", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "Mao et al.");
    expect_word(s.out, "triattention:v3-fork");
    expect_word(s.out, "offset-max=65536");
    expect_word(s.out, "pin-prompt=on"); /* its own default of a rule */
    expect_word(s.out, "stats=FILE");
    for (const char *line = s.out, *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
        assert_true(end - line <= 100);
    s = command(NULL, "policies", "random", NULL);
    expect_status(&s, 0);
    expect_word(s.out, "seed=0");
    assert_null(strstr(s.out, "Presets"));
}

/* Every preset and default that JSON has can be given to --keep. */
TEST(json_is_what_keep_takes)
{
    struct said s = command(NULL, "policies", "--json", NULL);
    expect_status(&s, 0);
    json_t *root = json_loads(s.out, 0, NULL), *policy, *preset, *param;
    size_t i, j;
    int32_t n_preset = 0, n_param = 0;
    assert_non_null(root);
    json_array_foreach(json_object_get(root, "keep"), i, policy)
    {
        const char *name = json_string_value(json_object_get(policy, "name"));
        char keep[256];
        json_array_foreach(json_object_get(policy, "presets"), j, preset)
        {
            const char *options = json_string_value(json_object_get(preset, "options"));
            const char *stats = strstr(options, "=global") != NULL ? ",stats=model.stats" : "";
            snprintf(keep, sizeof(keep), "%s:%s%s", name,
                     json_string_value(json_object_get(preset, "name")), stats);
            assert_int_equal(pith_policy_check(PITH_KEEP, keep, &err), PITH_OK);
            snprintf(keep, sizeof(keep), "%s:%s%s", name, options, stats);
            assert_int_equal(pith_policy_check(PITH_KEEP, keep, &err), PITH_OK);
            n_preset++;
        }
        json_array_foreach(json_object_get(policy, "params"), j, param)
        {
            snprintf(keep, sizeof(keep), "%s:%s=%s", name,
                     json_string_value(json_object_get(param, "key")),
                     json_string_value(json_object_get(param, "default")));
            assert_int_equal(pith_policy_check(PITH_KEEP, keep, &err), PITH_OK);
            n_param++;
        }
    }
    assert_int_equal(n_preset, 9);
    assert_true(n_param > 60);
    assert_int_equal(json_array_size(json_object_get(root, "keep")), i);
    assert_true(i >= 6);
    json_decref(root);
}

TEST(refuses_unknown_names_with_a_hint)
{
    pith_preset_info preset;
    struct said s = command(NULL, "policies", "triatention", NULL);
    expect_failure(&s, 2, "did you mean \"triattention\"?");
    s = command(NULL, "policies", "zzzzzz", NULL);
    expect_failure(&s, 2, "there is no such policy");
    assert_int_equal(pith_policy_get_preset(PITH_KEEP, 0, 0, &preset), PITH_NOT_FOUND);
    assert_int_equal(pith_policy_get_preset(PITH_KEEP, -1, 0, &preset), PITH_NOT_FOUND);
    assert_int_equal(pith_policy_get_preset(PITH_KEEP, 999, 0, &preset), PITH_NOT_FOUND);
}

/* docs/combinations.md is the command's output; test_combinations runs its cells. */
TEST(matrix_is_the_page)
{
    static char page[1 << 16];
    FILE *f = fopen(PITH_SOURCE_DIR "/docs/combinations.md", "rb");
    assert_non_null(f);
    size_t len = fread(page, 1, sizeof(page) - 1, f);
    fclose(f);
    page[len] = '\0';
    struct said s = command(NULL, "policies", "--matrix", NULL);
    expect_status(&s, 0);
    if (strcmp(s.out, page) != 0)
        fail_msg("`pith policies --matrix > docs/combinations.md` prints another page");
    s = command(NULL, "policies", "--matrix", "--json", NULL);
    expect_failure(&s, 2, "--matrix is of all policies");
    s = command(NULL, "policies", "--matrix", "knorm", NULL);
    expect_failure(&s, 2, "--matrix is of all policies");
    s = command(NULL, "policies", "kvzap", NULL);
    expect_word(s.out, "It needs stats=FILE, which pith calibrate importance writes.");
}
