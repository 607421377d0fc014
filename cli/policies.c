/*
 * policies.c - `pith policies`: what --keep, --read, --recall and --share take, and the storage
 * types, from the library's own tables.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "io.h"
#include "pith/policy.h"
#include "policies.h"

struct options {
    const char *name;
    bool json;
    bool matrix;
};

#define AT(member) .offset = offsetof(struct options, member)
static const struct option table[] = {
    {"NAME", NULL, NULL, OPTION_TEXT, AT(name), .absent = "all",
     .help = "one policy, with its options, or one storage type"},
    {"--json", NULL, NULL, OPTION_FLAG, AT(json), .help = "print JSON"},
    {"--matrix", NULL, NULL, OPTION_FLAG, AT(matrix),
     .help = "print which policies go together: every pair, and prefixes, forks, swaps and files"},
    {0},
};
#undef AT

static const struct option_group groups[] = {{NULL, table, 0}, {0}};

/* The library's lists of one verb's policies. */
struct verb {
    pith_verb verb;   /* whose name is the option's and stands in JSON */
    const char *what; /* what is chosen */
    const char *none; /* what happens without a policy */
    const char *docs;
};

static const struct verb verbs[] = {
    {PITH_KEEP, "Entries of the KV cache that stay", "every entry (the default)",
     "docs/policies.md"},
    {PITH_READ, "Entries that attention looks at", "everything (the default)", "docs/read.md"},
    {PITH_RECALL, "How evicted entries come back", "they do not (the default)", "docs/recall.md"},
    {PITH_SHARE, "Pages of reasoning that stand for others", "each page for itself (the default)",
     "docs/share.md"},
};

#define N_VERB (sizeof(verbs) / sizeof(verbs[0]))

/* Whether some policy of the verb has presets. */
static bool has_presets(const struct verb *v)
{
    pith_policy_info policy;
    for (int32_t i = 0; pith_policy_get(v->verb, i, &policy) == PITH_OK; i++)
        if (policy.n_preset > 0)
            return true;
    return false;
}

/* Whether policy i has options that are rules (shared), or that are not. */
static bool has_params(const struct verb *v, int32_t i, bool shared)
{
    pith_param_info p;
    for (int32_t j = 0; pith_policy_get_param(v->verb, i, j, &p) == PITH_OK; j++)
        if (p.shared == shared)
            return true;
    return false;
}

/* ---- text ---- */

/* "  left   text", the text in its own column. */
static void print_entry(const char *left, size_t column, const char *text)
{
    size_t len = strlen(left) + 2;
    printf("  %s", left);
    if (len + 2 > column) {
        putchar('\n');
        len = 0;
    }
    printf("%*s", (int)(column - len), "");
    help_print_wrapped(text, column, column);
}

/* The text that help writes for an option without a value: most texts name files. */
static const char *placeholder(const pith_param_info *p)
{
    if (strcmp(p->type, "text") != 0)
        return "";
    return strcmp(p->key, "url") == 0 ? "URL" : strcmp(p->key, "session") == 0 ? "NAME" : "FILE";
}

/* The options of policy i that are rules, or those that are not; with its defaults. */
static void print_params(const struct verb *v, int32_t i, bool shared, bool defaults)
{
    pith_param_info p;
    for (int32_t j = 0; pith_policy_get_param(v->verb, i, j, &p) == PITH_OK; j++) {
        char left[64];
        if (p.shared != shared)
            continue;
        snprintf(left, sizeof(left), "%s%s%s", p.key, defaults ? "=" : "",
                 !defaults               ? ""
                 : p.fallback[0] != '\0' ? p.fallback
                                         : placeholder(&p));
        print_entry(left, 26, p.help);
    }
}

static void print_presets(const struct verb *v, const pith_policy_info *policy, int32_t i)
{
    pith_preset_info preset;
    for (int32_t j = 0; pith_policy_get_preset(v->verb, i, j, &preset) == PITH_OK; j++) {
        char left[64];
        snprintf(left, sizeof(left), "%s:%s", policy->name, preset.name);
        print_entry(left, 26, preset.help);
        printf("%*s", 26, "");
        help_print_wrapped(preset.options, 26, 26);
    }
}

static void print_policy(const struct verb *v, const pith_policy_info *policy, int32_t i)
{
    printf("%s: %s\n", policy->name, policy->summary);
    if (policy->citation[0] != '\0')
        help_print_wrapped(policy->citation, 0, 0);
    if (policy->file[0] != '\0')
        printf("It needs %s.\n", policy->file);
    if (policy->n_preset > 0) {
        printf("\nPresets, which later options change:\n");
        print_presets(v, policy, i);
    }
    if (has_params(v, i, false)) {
        printf("\nIts own options:\n");
        print_params(v, i, false, true);
    }
    if (has_params(v, i, true)) {
        printf("\nThe rules, which every policy has, with its defaults:\n");
        print_params(v, i, true, true);
    }
}

static void print_all(const struct verb *v)
{
    pith_policy_info policy;
    printf("%s, as --%s NAME:key=value,...%s\n\n", v->what, pith_verb_name(v->verb),
           has_presets(v) ? " or NAME:PRESET,key=value,..." : "");
    for (int32_t i = 0; pith_policy_get(v->verb, i, &policy) == PITH_OK; i++) {
        pith_preset_info preset;
        print_entry(policy.name, 18, policy.summary);
        if (policy.citation[0] != '\0') {
            printf("%*s", 18, "");
            help_print_wrapped(policy.citation, 18, 18);
        }
        for (int32_t j = 0; pith_policy_get_preset(v->verb, i, j, &preset) == PITH_OK; j++) {
            char left[64];
            snprintf(left, sizeof(left), "  :%s", preset.name);
            print_entry(left, 18, preset.help);
        }
    }
    print_entry("none", 18, v->none);
    if (has_params(v, 0, true)) {
        printf("\nThe rules, which every one of them has:\n");
        print_params(v, 0, true, false);
    }
    printf("\n\"pith policies NAME\" tells the options of one. %s explains them.\n", v->docs);
}

/* ---- JSON ---- */

static json_t *json_policy(const struct verb *v, const pith_policy_info *policy, int32_t i)
{
    pith_preset_info preset;
    pith_param_info p;
    json_t *presets = json_array(), *params = json_array();
    for (int32_t j = 0; pith_policy_get_preset(v->verb, i, j, &preset) == PITH_OK; j++)
        json_array_append_new(presets, json_pack("{s:s, s:s, s:s}", "name", preset.name, "options",
                                                 preset.options, "help", preset.help));
    for (int32_t j = 0; pith_policy_get_param(v->verb, i, j, &p) == PITH_OK; j++)
        json_array_append_new(params, json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:b}", "key", p.key,
                                                "type", p.type, "default", p.fallback, "help",
                                                p.help, "min", (json_int_t)p.min, "max",
                                                (json_int_t)p.max, "shared", (int)p.shared));
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "name", policy->name, "summary",
                     policy->summary, "citation", policy->citation, "file", policy->file, "presets",
                     presets, "params", params);
}

/* The policies of a verb that a name, or NULL for all, is of. */
static json_t *json_verb(const struct verb *v, const char *name)
{
    pith_policy_info policy;
    json_t *list = json_array();
    for (int32_t i = 0; pith_policy_get(v->verb, i, &policy) == PITH_OK; i++)
        if (name == NULL || strcmp(name, policy.name) == 0)
            json_array_append_new(list, json_policy(v, &policy, i));
    return list;
}

/* ---- storage types ---- */

/* "4.25 bits in heads of 64", for the head sizes that types mind. */
static void print_bits(int32_t i)
{
    static const int32_t dims[] = {128, 64, 96, 80};
    char line[160] = "bits per value in heads of";
    double last = -1.0;
    for (size_t k = 0; k < sizeof(dims) / sizeof(dims[0]); k++) {
        double bits = pith_store_bits(i, dims[k]);
        size_t len = strlen(line);
        if (bits > 0.0 && bits != last)
            snprintf(line + len, sizeof(line) - len, "%s %d: %g", k > 0 ? "," : "", (int)dims[k],
                     bits);
        last = bits;
    }
    printf("%*s", 18, "");
    help_print_wrapped(line, 18, 18);
}

static void print_type(int32_t i, const pith_store_info *type, bool citation)
{
    print_entry(type->name, 18, type->summary);
    print_bits(i);
    if (citation && type->citation[0] != '\0') {
        printf("%*s", 18, "");
        help_print_wrapped(type->citation, 18, 18);
    }
}

static void print_types(void)
{
    pith_store_info type;
    printf("Storage types of keys, as -ctk TYPE[:force][:centre][:EDGE=FIRST+LAST],\n"
           "and of values, as -ctv TYPE[:EDGE=FIRST+LAST]\n\n");
    for (int32_t i = 0; pith_store_type(i, &type) == PITH_OK; i++)
        print_type(i, &type, false);
    printf("\n\"pith info MODEL\" tells the cost of each pair. docs/store.md explains them.\n");
}

static json_t *json_types(const char *name)
{
    pith_store_info type;
    json_t *list = json_array();
    for (int32_t i = 0; pith_store_type(i, &type) == PITH_OK; i++)
        if (name == NULL || strcmp(name, type.name) == 0)
            json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:b, s:f, s:f}", "name",
                                                  type.name, "summary", type.summary, "citation",
                                                  type.citation, "rotated", (int)type.rotated,
                                                  "bits_128", pith_store_bits(i, 128), "bits_64",
                                                  pith_store_bits(i, 64)));
    return list;
}

/* ---- the whole ---- */

/* A name can be that of a policy of several verbs. */
static void print_named(const char *name)
{
    int n = 0;
    pith_store_info type;
    for (int32_t i = 0; pith_store_type(i, &type) == PITH_OK; i++)
        if (strcmp(name, type.name) == 0)
            print_type(i, &type, true);
    pith_policy_info policy;
    for (size_t k = 0; k < N_VERB; k++)
        for (int32_t i = 0; pith_policy_get(verbs[k].verb, i, &policy) == PITH_OK; i++)
            if (strcmp(name, policy.name) == 0) {
                printf("%s--%s ", n++ > 0 ? "\n" : "", pith_verb_name(verbs[k].verb));
                print_policy(&verbs[k], &policy, i);
            }
}

/* Fails where no policy has the name. */
static void check_name(const char *name)
{
    const char *names[64] = {0};
    pith_policy_info policy;
    pith_store_info type;
    size_t n = 0;
    for (size_t k = 0; k < N_VERB; k++)
        for (int32_t i = 0; pith_policy_get(verbs[k].verb, i, &policy) == PITH_OK; i++) {
            if (strcmp(name, policy.name) == 0)
                return;
            if (n < sizeof(names) / sizeof(names[0]))
                names[n++] = policy.name;
        }
    for (int32_t i = 0; pith_store_type(i, &type) == PITH_OK; i++) {
        if (strcmp(name, type.name) == 0)
            return;
        if (n < sizeof(names) / sizeof(names[0]))
            names[n++] = type.name;
    }
    const char *near = pith_nearest(name, names, n);
    if (near != NULL)
        cli_fail_usage("%s: there is no such policy; did you mean \"%s\"?", name, near);
    cli_fail_usage("%s: there is no such policy; \"pith policies\" lists them", name);
}

static int run(void *options)
{
    const struct options *o = options;
    if (o->matrix && (o->json || o->name != NULL))
        cli_fail_usage(
            "--matrix is of all policies, as text: it goes with neither NAME nor --json");
    if (o->name != NULL)
        check_name(o->name);
    if (o->matrix) {
        policies_print_matrix();
    } else if (o->json) {
        json_t *all = json_object();
        for (size_t k = 0; k < N_VERB; k++)
            json_object_set_new(all, pith_verb_name(verbs[k].verb), json_verb(&verbs[k], o->name));
        json_object_set_new(all, "store", json_types(o->name));
        cli_json_print(all, JSON_INDENT(1));
    } else if (o->name != NULL) {
        print_named(o->name);
    } else {
        for (size_t k = 0; k < N_VERB; k++) {
            printf("%s", k > 0 ? "\n" : "");
            print_all(&verbs[k]);
        }
        putchar('\n');
        print_types();
    }
    return EXIT_SUCCESS;
}

const struct command command_policies = {
    .name = "policies",
    .summary = "list the policies and types of --keep, --read, --recall, --share, -ctk and -ctv",
    .synopsis = "[NAME] [--json | --matrix]",
    .notes = "  pith policies triattention",
    .groups = groups,
    .options_size = sizeof(struct options),
    .run = run,
};
