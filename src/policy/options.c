/*
 * options.c - "NAME:key=value,..." to checked values. It knows no verb, rule or policy by name: the
 * meaning of a key stands in its row. A pure function of the text.
 */
#include <stdio.h>

#include "base/near.h"
#include "base/number.h"
#include "policy/policy.h"

const char *const policy_switch_words[] = {"off", "on", NULL};

/* A piece of the option text; not terminated. */
struct piece {
    const char *at;
    int32_t len;
};

static bool piece_is(struct piece p, const char *word)
{
    return strlen(word) == (size_t)p.len && memcmp(p.at, word, (size_t)p.len) == 0;
}

/* Takes what stands before the next `end` off *rest. */
static struct piece next_piece(const char **rest, char end)
{
    const char *stop = strchr(*rest, end);
    size_t len = stop != NULL ? (size_t)(stop - *rest) : strlen(*rest);
    struct piece p = {*rest, (int32_t)pi_min((int64_t)len, INT32_MAX)};
    *rest += len + (stop != NULL);
    return p;
}

/* ---- names ---- */

/* The names that a sentence lists, and among which the nearest is looked for. */
struct names {
    const char *name[64];
    size_t n;
};

static void names_add(struct names *names, const char *name)
{
    if (names->n < PI_LEN(names->name))
        names->name[names->n++] = name;
}

/* Appends ", word" (the first without comma) to a terminated list, as far as it fits. */
static void list_add(char *list, size_t cap, const char *word)
{
    size_t len = strlen(list);
    snprintf(list + len, cap - len, "%s%s", len > 0 ? ", " : "", word);
}

/* "; did you mean NAME?" where a name is near the word, else the empty text. */
static const char *meant(const struct names *names, struct piece word, char *buf, size_t cap)
{
    const char *near = pi_nearest(word.at, (size_t)word.len, names->name, names->n);
    buf[0] = '\0';
    if (near != NULL)
        snprintf(buf, cap, "; did you mean %s?", near);
    return buf;
}

/* The same, or all names in brackets. */
static const char *meant_or_all(const struct names *names, struct piece word, char *buf, size_t cap)
{
    if (meant(names, word, buf, cap)[0] != '\0' || cap < 3)
        return buf;
    snprintf(buf, cap, " (");
    for (size_t i = 0; i < names->n; i++) {
        size_t len = strlen(buf);
        snprintf(buf + len, cap - len, "%s%s", i > 0 ? ", " : "", names->name[i]);
    }
    size_t len = strlen(buf);
    snprintf(buf + len, cap - len, ")");
    return buf;
}

/* ---- values ---- */

/* Reads digits with at most `places` decimals as a number of units of 10^-places, and takes them
   off *p. False: no digit, too many decimals, or beyond 2^62. */
static bool read_decimal(struct piece *p, int32_t places, int64_t *out)
{
    int64_t value = 0;
    int32_t i = 0, n_digit = 0, decimals = -1;
    for (; i < p->len; i++) {
        char c = p->at[i];
        if (c == '.' && decimals < 0 && n_digit > 0) {
            decimals = 0;
            continue;
        }
        if (c < '0' || c > '9')
            break;
        if (value > (INT64_MAX >> 1) / 10 - 1 || decimals == places)
            return false;
        value = 10 * value + (c - '0');
        n_digit++;
        decimals += decimals >= 0;
    }
    if (n_digit == 0 || decimals == 0)
        return false;
    for (decimals = decimals < 0 ? 0 : decimals; decimals < places; decimals++) {
        if (value > (INT64_MAX >> 1) / 10)
            return false;
        value *= 10;
    }
    *out = value;
    p->at += i;
    p->len -= i;
    return true;
}

static pith_status check_count(const char *verb, const struct policy_param *param, int64_t value,
                               pith_error *err)
{
    if (value < param->min || value > param->max)
        return pi_fail(err, PITH_INVALID, "%s: %s: %lld is not in %d..%d", verb, param->key,
                       (long long)value, param->min, param->max);
    return PITH_OK;
}

static pith_status set_count(const char *verb, const struct policy_param *param, struct piece text,
                             void *field, pith_error *err)
{
    int64_t value;
    struct piece rest = text;
    if (!read_decimal(&rest, 0, &value) || rest.len > 0)
        return pi_fail(err, PITH_INVALID, "%s: %s: \"%.*s\" is not a whole number", verb,
                       param->key, (int)pi_min(text.len, 32), text.at);
    PI_TRY(check_count(verb, param, value, err));
    *(int32_t *)field = (int32_t)value;
    return PITH_OK;
}

/* Units end in B, so that "4k" is not read as tokens. */
static const struct {
    const char *name;
    int64_t bytes;
} byte_units[] = {
    {"B", 1},         {"kB", 1000},     {"MB", 1000000},  {"GB", 1000000000},
    {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
};

#define MILLIONTHS_DECIMALS 4 /* a percent is 10^4 millionths */

static bool read_bytes(struct piece text, int64_t *out)
{
    int64_t thousandths;
    if (!read_decimal(&text, 3, &thousandths))
        return false;
    for (size_t i = 0; i < PI_LEN(byte_units); i++)
        if (piece_is(text, byte_units[i].name)) {
            if (thousandths > INT64_MAX / 2 / byte_units[i].bytes)
                return false;
            *out = thousandths * byte_units[i].bytes / 1000;
            return true;
        }
    return false;
}

static pith_status set_budget(const char *verb, const struct policy_param *param, struct piece text,
                              void *field, pith_error *err)
{
    struct policy_budget *out = field;
    struct piece rest = text;
    int64_t value;
    if (read_decimal(&rest, 0, &value) && rest.len == 0) {
        PI_TRY(check_count(verb, param, value, err));
        *out = (struct policy_budget){POLICY_UNIT_TOKENS, value};
        return PITH_OK;
    }
    rest = text;
    if (read_decimal(&rest, MILLIONTHS_DECIMALS, &value) && piece_is(rest, "%")) {
        if (value < 1 || value > 1000000)
            return pi_fail(err, PITH_INVALID, "%s: %s: %.*s is not above 0%% and at most 100%%",
                           verb, param->key, (int)pi_min(text.len, 32), text.at);
        *out = (struct policy_budget){POLICY_UNIT_SHARE, value};
        return PITH_OK;
    }
    if (read_bytes(text, &value)) {
        *out = (struct policy_budget){POLICY_UNIT_BYTES, value};
        return PITH_OK;
    }
    return pi_fail(err, PITH_INVALID,
                   "%s: %s: \"%.*s\" is no number of tokens (512), share of them (50%%) or size "
                   "(64MiB; B, kB, MB, GB, KiB, MiB, GiB)",
                   verb, param->key, (int)pi_min(text.len, 32), text.at);
}

static pith_status set_size(const char *verb, const struct policy_param *param, struct piece text,
                            void *field, pith_error *err)
{
    const int64_t mebi = 1 << 20;
    int64_t value;
    if (param->words != NULL && piece_is(text, param->words[0])) {
        *(int64_t *)field = -1;
        return PITH_OK;
    }
    if (!read_bytes(text, &value))
        return pi_fail(err, PITH_INVALID,
                       "%s: %s: \"%.*s\" is no size (64MiB; B, kB, MB, GB, KiB, MiB, GiB)", verb,
                       param->key, (int)pi_min(text.len, 32), text.at);
    if (value < param->min * mebi || value > param->max * mebi)
        return pi_fail(err, PITH_INVALID, "%s: %s: %lld bytes are not in %dMiB..%dMiB", verb,
                       param->key, (long long)value, param->min, param->max);
    *(int64_t *)field = value;
    return PITH_OK;
}

/* Limits in thousandths. */
static pith_status set_real(const char *verb, const struct policy_param *param, struct piece text,
                            void *field, pith_error *err)
{
    double value;
    if (param->words != NULL && piece_is(text, param->words[0])) {
        *(double *)field = -1.0;
        return PITH_OK;
    }
    if (!pi_number_read(text.at, (size_t)text.len, &value))
        return pi_fail(err, PITH_INVALID, "%s: %s: \"%.*s\" is not a number", verb, param->key,
                       (int)pi_min(text.len, 32), text.at);
    if (!(value >= param->min / 1000.0 && value <= param->max / 1000.0))
        return pi_fail(err, PITH_INVALID, "%s: %s: %g is not in %g..%g", verb, param->key, value,
                       param->min / 1000.0, param->max / 1000.0);
    *(double *)field = value;
    return PITH_OK;
}

static pith_status set_choice(const char *verb, const struct policy_param *param, struct piece text,
                              void *field, pith_error *err)
{
    char words[160] = "", near[64];
    struct names names = {.n = 0};
    for (int32_t i = 0; param->words[i] != NULL; i++) {
        if (piece_is(text, param->words[i])) {
            *(int32_t *)field = i;
            return PITH_OK;
        }
        list_add(words, sizeof(words), param->words[i]);
        names_add(&names, param->words[i]);
    }
    return pi_fail(err, PITH_INVALID, "%s: %s: \"%.*s\" is none of %s%s", verb, param->key,
                   (int)pi_min(text.len, 32), text.at, words,
                   meant(&names, text, near, sizeof(near)));
}

static pith_status set_text(const char *verb, const struct policy_param *param, struct piece text,
                            void *field, pith_error *err)
{
    char *out = field;
    if (text.len >= POLICY_TEXT_SIZE)
        return pi_fail(err, PITH_INVALID, "%s: %s: a text of %d bytes is longer than %d", verb,
                       param->key, text.len, POLICY_TEXT_SIZE - 1);
    memcpy(out, text.at, (size_t)text.len);
    out[text.len] = '\0';
    return PITH_OK;
}

static pith_status set_value(const char *verb, const struct policy_param *param, struct piece text,
                             void *fields, pith_error *err)
{
    static pith_status (*const set[])(const char *, const struct policy_param *, struct piece,
                                      void *, pith_error *) = {
        [POLICY_TYPE_COUNT] = set_count, [POLICY_TYPE_BUDGET] = set_budget,
        [POLICY_TYPE_REAL] = set_real,   [POLICY_TYPE_CHOICE] = set_choice,
        [POLICY_TYPE_TEXT] = set_text,   [POLICY_TYPE_SIZE] = set_size,
    };
    return set[param->type](verb, param, text, (uint8_t *)fields + param->offset, err);
}

/* ---- keys ---- */

static void add_keys(struct names *names, const struct policy_param *params)
{
    for (; params != NULL && params->key != NULL; params++)
        names_add(names, params->key);
}

static const struct policy_param *find_in(const struct policy_param *params, struct piece key)
{
    for (; params != NULL && params->key != NULL; params++)
        if (piece_is(key, params->key))
            return params;
    return NULL;
}

/* One "key=value" of a policy: a rule's key or one of its own. */
static pith_status set_option(const struct policy_options *o, struct piece option, pith_error *err)
{
    const char *equals = memchr(option.at, '=', (size_t)option.len);
    if (equals == NULL)
        return pi_fail(err, PITH_INVALID, "%s: %s: \"%.*s\" is not key=value", o->verb, o->name,
                       (int)pi_min(option.len, 32), option.at);
    struct piece key = {option.at, (int32_t)(equals - option.at)};
    struct piece value = {equals + 1, option.len - key.len - 1};
    const struct policy_param *param = find_in(o->rules, key);
    if (param != NULL)
        return set_value(o->verb, param, value, o->rule_fields, err);
    param = find_in(o->own, key);
    if (param != NULL)
        return set_value(o->verb, param, value, o->own_fields, err);
    char text[480];
    struct names keys = {.n = 0};
    add_keys(&keys, o->rules);
    add_keys(&keys, o->own);
    return pi_fail(err, PITH_INVALID, "%s: %s has no option \"%.*s\"%s", o->verb, o->name,
                   (int)pi_min(key.len, 32), key.at, meant_or_all(&keys, key, text, sizeof(text)));
}

/* Whether the key of `option` also stands in what follows. */
static bool key_repeats(struct piece option, const char *rest)
{
    const char *equals = memchr(option.at, '=', (size_t)option.len);
    size_t len = equals != NULL ? (size_t)(equals - option.at) + 1 : 0;
    while (len > 0 && *rest != '\0') {
        struct piece later = next_piece(&rest, ',');
        if ((size_t)later.len >= len && memcmp(later.at, option.at, len) == 0)
            return true;
    }
    return false;
}

static pith_status set_options(const struct policy_options *o, const char *options, pith_error *err)
{
    while (options != NULL && *options != '\0') {
        struct piece option = next_piece(&options, ',');
        if (*options == '\0' && options[-1] == ',')
            return pi_fail(err, PITH_INVALID, "%s: %s: nothing follows the last comma", o->verb,
                           o->name);
        if (key_repeats(option, options))
            return pi_fail(err, PITH_INVALID, "%s: %s: \"%.*s\" is followed by another value",
                           o->verb, o->name, (int)pi_min(option.len, 64), option.at);
        PI_TRY(set_option(o, option, err));
    }
    return PITH_OK;
}

/* The preset that the options begin with, if any, is read and taken off them. */
static pith_status set_preset(const struct policy_options *o, const char **options, pith_error *err)
{
    const char *rest = *options;
    const struct policy_preset *preset = o->presets;
    if (rest == NULL || preset == NULL)
        return PITH_OK;
    struct piece first = next_piece(&rest, ',');
    if (first.len == 0 || memchr(first.at, '=', (size_t)first.len) != NULL)
        return PITH_OK;
    char list[160] = "", near[64];
    struct names names = {.n = 0};
    for (; preset->name != NULL; preset++) {
        if (piece_is(first, preset->name)) {
            if (*rest == '\0' && rest[-1] == ',')
                return pi_fail(err, PITH_INVALID, "%s: %s: nothing follows the last comma", o->verb,
                               o->name);
            *options = rest;
            return set_options(o, preset->options, err);
        }
        list_add(list, sizeof(list), preset->name);
        names_add(&names, preset->name);
    }
    return pi_fail(err, PITH_INVALID, "%s: %s: \"%.*s\" is neither key=value nor one of %s%s",
                   o->verb, o->name, (int)pi_min(first.len, 32), first.at, list,
                   meant(&names, first, near, sizeof(near)));
}

static pith_status set_fallbacks(const char *verb, const struct policy_param *params, void *fields,
                                 pith_error *err)
{
    for (; params != NULL && params->key != NULL; params++) {
        struct piece text = {params->fallback, (int32_t)strlen(params->fallback)};
        PI_TRY(set_value(verb, params, text, fields, err));
    }
    return PITH_OK;
}

pith_status policy_options_read(const struct policy_options *o, const char *options,
                                pith_error *err)
{
    PI_TRY(set_fallbacks(o->verb, o->rules, o->rule_fields, err));
    PI_TRY(set_fallbacks(o->verb, o->own, o->own_fields, err));
    PI_TRY(set_options(o, o->defaults, err));
    PI_TRY(set_preset(o, &options, err));
    return set_options(o, options, err);
}

void policy_param_fallback(const char *defaults, const struct policy_param *param, char *out,
                           size_t cap)
{
    size_t len = strlen(param->key);
    snprintf(out, cap, "%s", param->fallback);
    while (defaults != NULL && *defaults != '\0') {
        struct piece option = next_piece(&defaults, ',');
        if ((size_t)option.len > len && option.at[len] == '=' &&
            memcmp(option.at, param->key, len) == 0)
            snprintf(out, cap, "%.*s", option.len - (int)len - 1, option.at + len + 1);
    }
}

/* ---- policies ---- */

/* Whether a text goes on with a comma behind a policy's name, where a colon belongs. */
static bool has_comma_for_colon(const char *text, const char *name)
{
    size_t len = strlen(name);
    return strncmp(text, name, len) == 0 && text[len] == ',';
}

pith_status policy_find(const char *verb, const char *text, const char *(*name_at)(int32_t i),
                        int32_t *index, const char **options, pith_error *err)
{
    const char *rest = text;
    *index = -1;
    *options = NULL;
    if (text == NULL)
        return PITH_OK;
    bool has_options = strchr(text, ':') != NULL;
    struct piece name = next_piece(&rest, ':');
    if (piece_is(name, "none") && !has_options)
        return PITH_OK;
    char list[240];
    struct names names = {.name = {"none"}, .n = 1};
    for (int32_t i = 0; name_at(i) != NULL; i++) {
        names_add(&names, name_at(i));
        if (has_comma_for_colon(text, name_at(i)))
            return pi_fail(err, PITH_INVALID,
                           "%s: \"%.64s\": options follow a colon; did you mean %s:%.64s?", verb,
                           text, name_at(i), text + strlen(name_at(i)) + 1);
        if (!piece_is(name, name_at(i)))
            continue;
        if (has_options && *rest == '\0')
            return pi_fail(err, PITH_INVALID, "%s: \"%.64s\" ends where options should begin", verb,
                           text);
        *index = i;
        *options = rest;
        return PITH_OK;
    }
    if (piece_is(name, "none"))
        return pi_fail(err, PITH_INVALID, "%s: none has no options, as in \"%.64s\"", verb, text);
    return pi_fail(err, PITH_INVALID, "%s: \"%.*s\" is not a policy%s", verb,
                   (int)pi_min(name.len, 32), name.at,
                   meant_or_all(&names, name, list, sizeof(list)));
}

static const char *custom_at(int32_t i)
{
    return i == 0 ? "custom" : NULL;
}

pith_status policy_find_custom(const char *verb, const char *text, const char **options,
                               pith_error *err)
{
    int32_t index;
    *options = NULL;
    if (text == NULL)
        return PITH_OK;
    PI_TRY(policy_find(verb, text, custom_at, &index, options, err));
    return index >= 0
               ? PITH_OK
               : pi_fail(err, PITH_INVALID, "%s: none: the program has a policy, \"custom\"", verb);
}
