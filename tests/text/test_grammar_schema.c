/*
 * test_grammar_schema.c - JSON schemas: for each keyword the allowed and the forbidden texts, and
 * the sentences of refusals. scripts/golden/grammar.py compares with jsonschema.
 */
#include <string.h>

#include "testing.h"

#include "base/mem.h"
#include "tests/support/grammar_rig.h"

TEST_GROUP(rig_setup, rig_teardown);

TEST(allows_each_type)
{
    ALLOWS("{}", "1", "\"a\"", "null", "[1, {\"a\":[]}]", "{\"a\": {\"b\":\n  true}}", "-0.5e+10");
    ALLOWS("true", "[]");
    FORBIDS("{}", "nul,", "01", "[1,]", "{1", "\"\n", "\"\\ud800\"", "'", "1.e", "+1");
    ALLOWS("{\"type\":\"integer\"}", "0", "-12", "123456789012345678");
    FORBIDS("{\"type\":\"integer\"}", "1.", "00", "1e", "\"");
    ALLOWS("{\"type\":[\"string\",\"null\"]}", "null", "\"x\"", "\"\\u00e9\\n\"",
           "\"\\ud83d\\ude00\"");
    ALLOWS("{\"type\":\"string\",\"nullable\":true}", "null", "\"\"");
    ALLOWS("{\"type\":\"object\"}", "{}", "{ \"x\": 1}");
    ALLOWS("{\"type\":\"boolean\"}", "true", "false");
}

TEST(allows_objects_by_their_properties)
{
    const char *s = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{},"
                    "\"c\":{\"type\":\"null\"}},\"required\":[\"b\"]}";
    ALLOWS(s, "{\"b\":1}", "{\"a\":1,\"b\":[]}", "{ \"a\": 1, \"b\": 2, \"c\": null }");
    FORBIDS(s, "{}", "{\"a\":1}", "{\"c\"", "{\"b\":1,\"a\"", "{\"b\":1,}", "{\"b\":1,\"x\"");
    s = "{\"properties\":{\"ab\":{\"const\":1}},\"additionalProperties\":{\"type\":\"null\"}}";
    ALLOWS(s, "{\"ab\":1}", "{\"abc\":null}", "{\"a\":null,\"\":null}", "{\"ab\":1,\"é\":null}");
    FORBIDS(s, "{\"ab\":n", "{\"a\":1", "{\"ab\":1,\"ab\":");
    s = "{\"properties\":{\"é\":true,\"q\\\"\":true},\"additionalProperties\":true}";
    ALLOWS(s, "{\"é\":1,\"q\\\"\":2,\"e\":3}");
    ALLOWS("{\"properties\":{\"a\":true,\"b\":true},\"minProperties\":1}", "{\"b\":1}",
           "{\"a\":1}");
    FORBIDS("{\"properties\":{\"a\":true,\"b\":true},\"minProperties\":1}", "{}", "{ }");
    ALLOWS("{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}", "{\"a\":1,\"b\":2}");
    FORBIDS("{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}", "{}",
            "{\"a\":1,\"b\":2,");
    ALLOWS("{\"required\":[\"x\"],\"properties\":{\"a\":true}}", "{\"a\":1,\"x\":2}", "{\"x\":1}");
    ALLOWS("{\"patternProperties\":{\"^x-[a-z]$\":{\"type\":\"null\"}}}", "{\"x-a\":null}", "{}");
    FORBIDS("{\"patternProperties\":{\"^x-[a-z]$\":{\"type\":\"null\"}}}", "{\"a\"", "{\"x-a\":1");
    ALLOWS("{\"propertyNames\":{\"pattern\":\"^k\"},\"type\":\"object\"}", "{\"kk\":1}");
    FORBIDS("{\"properties\":{\"a\":false,\"b\":true}}", "{\"a\"");
}

TEST(allows_arrays_by_their_items)
{
    const char *s =
        "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}";
    ALLOWS(s, "[1]", "[1,2, 3]");
    FORBIDS(s, "[]", "[1,2,3,", "[null", "[1,]");
    s = "{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":{\"const\":3}}";
    ALLOWS(s, "[]", "[1]", "[1,2]", "[1,2,3,3]");
    FORBIDS(s, "[2", "[1,3", "[1,2,2");
    s = "{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false,\"minItems\":2}";
    ALLOWS(s, "[1,2]");
    FORBIDS(s, "[1]", "[1,2,");
    ALLOWS("{\"items\":[{\"const\":1}],\"additionalItems\":{\"const\":2}}", "[1,2,2]");
    FORBIDS("{\"items\":{\"const\":1},\"maxItems\":0}", "[1");
    ALLOWS("{\"type\":\"array\",\"maxItems\":1,\"uniqueItems\":true}", "[[]]");
}

TEST(allows_numbers_within_their_bounds)
{
    const char *s = "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":130}";
    char text[32];
    pith_grammar *g = rig_grammar(s, NULL);
    for (int i = -1400; i < 1400; i++) {
        snprintf(text, sizeof(text), "%d", i);
        int got = rig_judge(g, text);
        if ((got == 2) != (i >= -12 && i <= 130))
            fail_msg("%s: %d is judged %d", s, i, got);
    }
    pith_grammar_free(g);
    /* Hundredths, against bounds that have tenths and are open on one side. */
    g = rig_grammar("{\"type\":\"number\",\"exclusiveMinimum\":-3.5,\"maximum\":12.3}", NULL);
    for (int i = -500; i < 1500; i++) {
        snprintf(text, sizeof(text), "%s%d.%02d", i < 0 ? "-" : "", abs(i) / 100, abs(i) % 100);
        if ((rig_judge(g, text) == 2) != (i > -350 && i <= 1230))
            fail_msg("-3.5 < x <= 12.3: %s is judged %d", text, rig_judge(g, text));
    }
    pith_grammar_free(g);
    ALLOWS("{\"minimum\":0.05}", "0.05", "1", "0.0500001", "99");
    FORBIDS("{\"minimum\":0.05}", "-", "0.04");
    ALLOWS("{\"type\":\"integer\",\"exclusiveMaximum\":0}", "-1", "-100");
    FORBIDS("{\"type\":\"integer\",\"exclusiveMaximum\":0}", "0", "1", "-0");
    ALLOWS("{\"type\":\"integer\",\"minimum\":5,\"exclusiveMinimum\":true}", "6", "12");
    rig_expect("{\"type\":\"integer\",\"minimum\":5,\"exclusiveMinimum\":true}", NULL, 1,
               (const char *const[]){"4", "5", NULL});
    ALLOWS("{\"type\":\"integer\",\"maximum\":1e300}", "5");
    ALLOWS("{\"type\":\"number\",\"multipleOf\":1,\"minimum\":3}", "3", "44");
    ALLOWS("{\"type\":\"integer\",\"maximum\":9223372036854775807}", "9223372036854775807");
    s = "{\"type\":\"integer\",\"minimum\":0,\"maximum\":18446744073709551615}";
    ALLOWS(s, "0", "18446744073709551615", "9223372036854775808");
    FORBIDS(s, "-", "18446744073709551616", "2000000000000000000000");
    ALLOWS("{\"enum\":[18446744073709551615,5],\"minimum\":9223372036854775808}",
           "18446744073709551615");
    FORBIDS("{\"enum\":[18446744073709551615,5],\"minimum\":9223372036854775808}", "5");
    ALLOWS("{\"const\":18446744073709551615}", "18446744073709551615");
    ALLOWS("{\"type\":\"string\",\"maxLength\":18446744073709551615}", "\"abc\"");
    FORBIDS("{\"type\":\"integer\",\"maximum\":9223372036854775807}", "9223372036854775808");
}

TEST(allows_strings_by_length_pattern_and_format)
{
    const char *s;
    ALLOWS("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"ab\"", "\"éé\\n\"");
    FORBIDS("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"a\"", "\"abcd");
    ALLOWS("{\"pattern\":\"^[a-c]{2}(x|\\\\d+)?$\"}", "\"ab\"", "\"abx\"", "\"ab12\"");
    FORBIDS("{\"pattern\":\"^[a-c]{2}(x|\\\\d+)?$\"}", "\"a\"", "\"abxx", "\"d");
    ALLOWS("{\"pattern\":\"b\"}", "\"b\"", "\"abc\"", "\"\\\"b\"");
    ALLOWS("{\"pattern\":\"^[^a]\\\"\\\\\\\\$\"}", "\"x\\\"\\\\\"", "\"\\n\\\"\\\\\"");
    ALLOWS("{\"pattern\":\"^a|b$\"}", "\"axx\"", "\"xxb\"");
    ALLOWS("{\"pattern\":\"^x[a-z]*$\",\"minLength\":3,\"maxLength\":4}", "\"xab\"", "\"xabc\"");
    FORBIDS("{\"pattern\":\"^x[a-z]*$\",\"minLength\":3,\"maxLength\":4}", "\"xa\"", "\"xabcd");
    ALLOWS("{\"format\":\"date\"}", "\"2024-02-29\"", "\"1999-12-31\"");
    FORBIDS("{\"format\":\"date\"}", "\"2023-02-29\"", "\"2024-04-31", "\"2024-13");
    ALLOWS("{\"format\":\"date-time\"}", "\"2024-05-06T07:08:09Z\"");
    ALLOWS("{\"format\":\"ipv4\"}", "\"255.0.19.1\"");
    FORBIDS("{\"format\":\"ipv4\"}", "\"256", "\"01");
    ALLOWS("{\"format\":\"uuid\"}", "\"123e4567-e89b-12d3-a456-426614174000\"");
    ALLOWS("{\"format\":\"email\"}", "\"a.b@example.org\"");
    ALLOWS("{\"format\":\"decimal\"}", "\"any text\""); /* not known: a remark */
    FORBIDS("{\"format\":\"decimal\"}", "5");
    /* A format stands for a pattern that cannot be read; one that can be read is held. */
    s = "{\"format\":\"email\",\"pattern\":\"^(?!\\\\.)[a-z.]+@[a-z.]+$\"}";
    ALLOWS(s, "\"a.b@example.org\"");
    FORBIDS(s, "\".");
    s = "{\"format\":\"date\",\"pattern\":\"^2[0-9]{3}-[0-9]{2}-[0-9]{2}$\"}";
    ALLOWS(s, "\"2024-05-06\"");
    FORBIDS(s, "\"1");
    rig_refuse("{\"pattern\":\"^(?!a)b$\"}", PITH_UNSUPPORTED, "#/pattern: look-around");
    rig_refuse("{\"format\":\"decimal\",\"pattern\":\"^(?!a)b$\"}", PITH_UNSUPPORTED,
               "#/pattern: look-around");
}

TEST(allows_enums_and_combinations)
{
    ALLOWS("{\"enum\":[1,\"a\\n\",null,[1,{\"b\":2}]]}", "1", "\"a\\n\"", "null",
           "[1, {\"b\": 2}]");
    FORBIDS("{\"enum\":[1,\"a\"]}", "2", "\"b");
    ALLOWS("{\"enum\":[1,\"a\"],\"type\":\"string\"}", "\"a\"");
    FORBIDS("{\"enum\":[1,\"a\"],\"type\":\"string\"}", "1");
    ALLOWS("{\"enum\":[1,2,3.5],\"exclusiveMinimum\":1,\"maximum\":3.5}", "2", "3.5");
    FORBIDS("{\"enum\":[1,2,3.5],\"exclusiveMinimum\":1,\"maximum\":3.5}", "1");
    /* A number beyond every integer type, of which a sanitizer would tell. */
    FORBIDS("{\"enum\":[1,2.9e47],\"type\":\"integer\"}", "2.9e47");
    ALLOWS("{\"enum\":[1,2.9e47],\"type\":\"integer\"}", "1");
    ALLOWS("{\"const\":{\"a\":[]}}", "{\"a\":[]}");
    ALLOWS("{\"anyOf\":[{\"type\":\"integer\"},{\"const\":\"x\"}]}", "5", "\"x\"");
    ALLOWS("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"anyOf\":[{"
           "\"required\":[\"a\"]},{\"properties\":{\"b\":true},\"required\":[\"b\"]}]}",
           "{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}");
    ALLOWS("{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"number\"}]}", "\"\"", "1");
    ALLOWS("{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":[\"k\"],\"type\":"
           "\"object\"},{\"properties\":{\"k\":{\"const\":\"b\"},\"v\":true},\"required\":[\"k\"],"
           "\"type\":\"object\"}]}",
           "{\"k\":\"a\"}", "{\"k\":\"b\",\"v\":1}");
    ALLOWS("{\"allOf\":[{\"type\":\"integer\",\"minimum\":3},{\"maximum\":5}]}", "3", "5");
    FORBIDS("{\"allOf\":[{\"type\":\"integer\",\"minimum\":3},{\"maximum\":5}]}", "2", "6");
    ALLOWS("{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}}},{\"properties\":{\"a\":{"
           "\"maximum\":4},\"b\":true},\"required\":[\"a\"]}]}",
           "{\"a\":4}", "{\"a\":1,\"b\":0}");
    FORBIDS("{\"allOf\":[{\"properties\":{\"a\":true},\"additionalProperties\":false},{"
            "\"properties\":{\"b\":true}}]}",
            "{\"b\"");
}

TEST(follows_references)
{
    const char *list = "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":"
                       "\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":"
                       "\"null\"}],\"description\":\"d\"}},\"required\":[\"v\",\"next\"]}},"
                       "\"$ref\":\"#/$defs/n\"}";
    ALLOWS(list, "{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}");
    FORBIDS(list, "{\"v\":1}", "{\"v\":1,\"next\":{}");
    ALLOWS("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", "[[],[[]]]");
    ALLOWS("{\"definitions\":{\"a/b\":{\"const\":1}},\"$ref\":\"#/definitions/a~1b\"}", "1");
    ALLOWS("{\"$defs\":{\"i\":{\"type\":\"integer\"}},\"$ref\":\"#/$defs/i\",\"maximum\":3,"
           "\"minimum\":2}",
           "2", "3");
}

TEST(refuses_keywords_that_it_cannot_follow)
{
    rig_refuse("{\"properties\":{\"a\":{\"not\":{}}}}", PITH_UNSUPPORTED, "#/properties/a/not: ");
    rig_refuse("{\"items\":{\"if\":{}}}", PITH_UNSUPPORTED, "#/items/if: ");
    rig_refuse("{\"type\":\"array\",\"uniqueItems\":true}", PITH_UNSUPPORTED, "#/uniqueItems: ");
    rig_refuse("{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":1}]}", PITH_UNSUPPORTED,
               "#/oneOf: schemas 0 and 1");
    rig_refuse("{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", PITH_UNSUPPORTED, "#/oneOf");
    rig_refuse("{\"pattern\":\"(?=a)\"}", PITH_UNSUPPORTED, "#/pattern: look-around");
    rig_refuse("{\"pattern\":\"\\\\bx\"}", PITH_UNSUPPORTED, "#/pattern: an escape");
    rig_refuse("{\"multipleOf\":3}", PITH_UNSUPPORTED, "#/multipleOf: ");
    rig_refuse("{\"$ref\":\"http://x/y\"}", PITH_UNSUPPORTED, "#/$ref: ");
    rig_refuse("{\"$ref\":\"#/no\"}", PITH_INVALID, "#/$ref: ");
    rig_refuse("{\"$ref\":\"#\"}", PITH_INVALID, "begins with itself");
    rig_refuse("{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", PITH_INVALID,
               "ever ends");
    rig_refuse("{\"type\":\"text\"}", PITH_INVALID, "#/type: ");
    rig_refuse("{\"type\":123}", PITH_INVALID, "#/type: ");
    rig_refuse("{\"minLength\":-1}", PITH_INVALID, "#/minLength: ");
    rig_refuse("{\"type\":\"object\",\"required\":1}", PITH_INVALID, "#/required: ");
    rig_refuse("{\"enum\":[1],\"type\":\"string\"}", PITH_INVALID, "nothing satisfies");
    rig_refuse("{\"type\":", PITH_INVALID, "JSON");
    rig_refuse("false", PITH_INVALID, "nothing satisfies");
    rig_refuse("{\"dependentRequired\":{}}", PITH_UNSUPPORTED, "#/dependentRequired: ");
    rig_refuse("{\"minLength\":2,\"pattern\":\"^a*b*$\"}", PITH_UNSUPPORTED, "#/pattern: a length");
}

/* Thirty definitions, each of which has the next one twice: too much work, and refused for it. */
TEST(refuses_references_that_double)
{
    char schema[4096];
    int n = snprintf(schema, sizeof(schema), "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 30; i++)
        n +=
            snprintf(schema + n, sizeof(schema) - (size_t)n,
                     "\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]},",
                     i, i + 1, i + 1);
    snprintf(schema + n, sizeof(schema) - (size_t)n, "\"d30\":{\"const\":1}}}");
    rig_refuse(schema, PITH_UNSUPPORTED, "more than the limit of");
}

/* The parameters decide the white space. */
TEST(white_space_is_what_the_parameters_say)
{
    const pith_grammar_params compact = {.compact = true};
    const char *s = "{\"type\":\"array\"}";
    char wide[64] = "[\n";
    ALLOWS(s, "[ 1,\n\n\t2 ]", "[\n                    1]");
    FORBIDS(s, " []", "[   ", "[1 ,", "[1,  ", "[\n\n\n\n\n");
    memset(wide + 2, ' ', 42);
    FORBIDS(s, wide);
    rig_expect(s, &compact, 0, (const char *const[]){"[ ", "[1, ", NULL});
    rig_expect(s, &compact, 2, (const char *const[]){"[1,{\"a\":2}]", NULL});
    const pith_grammar_params open = {.open_objects = true};
    rig_expect("{\"properties\":{\"a\":true}}", &open, 2, (const char *const[]){"{\"b\":1}", NULL});
}

/* Masks of schemas are what trying each token gives. */
TEST(masks_are_what_trying_each_token_gives)
{
    const char *s =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":3},"
        "\"ab\":{\"type\":\"array\",\"items\":{\"type\":[\"boolean\",\"string\"]}},\"n\":{"
        "\"type\":\"number\"}},\"additionalProperties\":{\"$ref\":\"#\"}}";
    static const char *const texts[] = {"",
                                        "{",
                                        "{\"",
                                        "{\"a",
                                        "{\"a\":\"",
                                        "{\"a\":\"xy",
                                        "{\"a\":\"xyz",
                                        "{\"a\":\"\\",
                                        "{\"a\":\"\\u",
                                        "{\"a\":\"\xc3",
                                        "{\"a\":\"x\",",
                                        "{\"ab\":[",
                                        "{\"ab\":[true",
                                        "{\"ab\":[true]",
                                        "{\"n\":1",
                                        "{\"n\":12.5",
                                        "{\"q\":{\"q\":{\"a\":\"x",
                                        "{\"q\":{\"q\":{\"n\":1",
                                        "{\"q\":{\"q\":{}",
                                        "{}"};
    pith_grammar *g = rig_grammar(s, NULL);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        rig_check_mask(g, texts[i]);
    pith_grammar_free(g);
}
