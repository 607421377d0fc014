/*
 * vocab_pre.c - pre-tokenizers: the patterns that cut text into words before byte pairs are merged,
 * as the authors of each tokenizer published them, run by PCRE2. It knows nothing of tokens.
 *
 * A pre-tokenizer is one to six patterns. The first cuts the text into its matches and the texts
 * between them. Each of these pieces is cut again by the next pattern, which sees that piece alone.
 * An end of a piece is an end of text to it. The pieces of the last pattern are the words.
 *
 * Departure from the published text: \s is spelled out as the white space of Unicode, because
 * PCRE2's own also has U+180E.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/vocab/vocab_internal.h"

#define PATTERN_MAX 6

struct pi_pre {
    pcre2_general_context *memory;
    pcre2_code *code[PATTERN_MAX];
    int32_t n_code;
};

/* ---- the patterns ---- */

/* White space, to stand inside brackets. */
#define S "\\x{9}-\\x{d}\\x{85}\\p{Z}"
/* The rest of the white space that most patterns end with. It is line ends with the blanks in front
   of them, then all but the last space before a word, then any other blanks. */
#define TAIL "|[" S "]*[\\r\\n]+|[" S "]+(?![^" S "])|[" S "]+"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LETTERS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SYMBOLS " ?[^" S "\\p{L}\\p{N}]+"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SYMBOLS "|[" S "]+(?![^" S "])|[" S "]+"
#define LLAMA3 CONTRACTION "|" LETTERS "|\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*" TAIL
#define QWEN2 CONTRACTION "|" LETTERS "|\\p{N}|" SYMBOLS "[\\r\\n]*" TAIL
#define QWEN35                                                                                     \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                                    \
                "| ?[^" S "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL

/* Words in which capitals come first, with the letters and marks that are neither on both sides. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define TEKKEN LEAD UPPER "*" LOWER "+|" LEAD UPPER "+" LOWER "*|\\p{N}|" SYMBOLS "[\\r\\n/]*" TAIL
#define GPT4O                                                                                      \
    LEAD UPPER "*" LOWER "+" CONTRACTION "?|" LEAD UPPER "+" LOWER "*" CONTRACTION                 \
               "?|\\p{N}{1,3}|" SYMBOLS "[\\r\\n/]*" TAIL

/* The script Han, spelled out: versions of PCRE2 differ on what else \p{Han} has. */
#define HAN                                                                                        \
    "\\x{2e80}-\\x{2e99}\\x{2e9b}-\\x{2ef3}\\x{2f00}-\\x{2fd5}\\x{3005}\\x{3007}"                  \
    "\\x{3021}-\\x{3029}\\x{3038}-\\x{303b}\\x{3400}-\\x{4dbf}\\x{4e00}-\\x{9fff}"                 \
    "\\x{f900}-\\x{fa6d}\\x{fa70}-\\x{fad9}\\x{16fe2}-\\x{16fe3}\\x{16ff0}-\\x{16ff1}"             \
    "\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2b739}\\x{2b740}-\\x{2b81d}\\x{2b820}-\\x{2cea1}"         \
    "\\x{2ceb0}-\\x{2ebe0}\\x{2ebf0}-\\x{2ee5d}\\x{2f800}-\\x{2fa1d}\\x{30000}-\\x{3134a}"         \
    "\\x{31350}-\\x{323af}"
/* As gpt-4o has it, but for Chinese characters, which are words apart from other letters. */
#define KIMI_UPPER "(?:(?![" HAN "])" UPPER ")"
#define KIMI_LOWER "(?:(?![" HAN "])" LOWER ")"
#define KIMI_K2                                                                                    \
    "[" HAN "]+|" LEAD KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTION "?|" LEAD KIMI_UPPER              \
    "+" KIMI_LOWER "*" CONTRACTION "?|\\p{N}{1,3}|" SYMBOLS "[\\r\\n]*" TAIL
#define SEED_CODER CONTRACTION "|" LETTERS "|\\p{N}| ?[^" S "\\p{L}\\p{N}]+" TAIL

/* The lookbehind changes no match: it keeps the search from trying every place of a long run. */
#define TRAILING_SPACE "(?<![" S "])[" S "]+$"
/* Chinese, Japanese and Korean as the two older DeepSeek tokenizers see them. */
#define DEEPSEEK_CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                       \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                 \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                 \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}"        \
    "\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"         \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"                 \
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"                  \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"                   \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"        \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"         \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"                  \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"                 \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"               \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"         \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_PUNCTUATION                                                                       \
    "[" S "]?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}"                     \
    "\\x{3000}-\\x{3002}]+"
#define DEEPSEEK3                                                                                  \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"                                        \
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" TAIL

static const char *const patterns_default[] = {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+",
                                               "[0-9][0-9][0-9]", NULL};
static const char *const patterns_gpt2[] = {GPT2, NULL};
static const char *const patterns_llama3[] = {LLAMA3, NULL};
static const char *const patterns_qwen2[] = {QWEN2, NULL};
static const char *const patterns_qwen35[] = {QWEN35, NULL};
static const char *const patterns_tekken[] = {TEKKEN, NULL};
static const char *const patterns_gpt4o[] = {GPT4O, NULL};
static const char *const patterns_kimi_k2[] = {KIMI_K2, NULL};
static const char *const patterns_seed_coder[] = {SEED_CODER, NULL};
static const char *const patterns_starcoder[] = {"\\p{N}", GPT2, NULL};
static const char *const patterns_falcon[] = {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]", NULL};
static const char *const patterns_deepseek_llm[] = {"[\\r\\n]",
                                                    "[" S "]?[" DEEPSEEK_LETTERS "]+",
                                                    DEEPSEEK_PUNCTUATION,
                                                    TRAILING_SPACE,
                                                    DEEPSEEK_CJK,
                                                    "\\p{N}+",
                                                    NULL};
static const char *const patterns_deepseek_coder[] = {
    "[\\r\\n]", "[" S "]?\\p{L}+", "[" S "]?\\p{P}+", DEEPSEEK_CJK, "\\p{N}", NULL};
static const char *const patterns_deepseek3[] = {
    "\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", DEEPSEEK3, NULL};

/* ---- the names ---- */

struct pre_name {
    const char *name;
    const char *const *patterns;
    struct pi_pre_traits traits;
};

#define PLAIN                                                                                      \
    {                                                                                              \
        .add_bos = false                                                                           \
    }
#define COMPOSED                                                                                   \
    {                                                                                              \
        .composes = true                                                                           \
    } /* the normalizer NFC stands in the published tokenizer.json */
#define WHOLE_BOS                                                                                  \
    {                                                                                              \
        .ignore_merges = true, .add_bos = true                                                     \
    } /* words that are tokens stay whole; BOS unless the file says no */

/* Every value of tokenizer.ggml.pre that stands for one of the patterns above. */
static const struct pre_name names[] = {
    {"default", patterns_default, PLAIN},
    {"gpt-2", patterns_gpt2, PLAIN},
    {"phi-2", patterns_gpt2, PLAIN},
    {"mpt", patterns_gpt2, COMPOSED},
    {"olmo", patterns_gpt2, COMPOSED},
    {"jais", patterns_gpt2, PLAIN},
    {"trillion", patterns_gpt2, PLAIN},
    {"granite-docling", patterns_gpt2, PLAIN},
    {"exaone4", patterns_gpt2, PLAIN},
    {"gigachat", patterns_gpt2, PLAIN},
    {"a.x-4.0", patterns_gpt2, PLAIN},
    {"mellum", patterns_gpt2, PLAIN},
    {"llama-bpe", patterns_llama3, WHOLE_BOS},
    {"llama3", patterns_llama3, WHOLE_BOS},
    {"llama-v3", patterns_llama3, WHOLE_BOS},
    {"falcon3", patterns_llama3, WHOLE_BOS},
    {"falcon-h1", patterns_llama3, WHOLE_BOS},
    {"pixtral", patterns_llama3, WHOLE_BOS},
    {"midm-2.0", patterns_llama3, WHOLE_BOS},
    {"lfm2", patterns_llama3, WHOLE_BOS},
    {"dbrx", patterns_llama3, PLAIN},
    {"smaug-bpe", patterns_llama3, PLAIN},
    {"chatglm-bpe", patterns_llama3, PLAIN},
    {"glm4", patterns_llama3, {.ignore_merges = true}},
    {"glm5", patterns_llama3, {.ignore_merges = true}},
    {"qwen2", patterns_qwen2, COMPOSED},
    {"deepseek-r1-qwen", patterns_qwen2, COMPOSED},
    {"megrez", patterns_qwen2, PLAIN},
    {"stablelm2", patterns_qwen2, COMPOSED},
    {"hunyuan", patterns_qwen2, COMPOSED},
    {"solar-open", patterns_qwen2, PLAIN},
    {"grok-2", patterns_qwen2, PLAIN},
    {"kormo", patterns_qwen2, PLAIN},
    {"qwen35", patterns_qwen35, COMPOSED},
    {"tekken", patterns_tekken, WHOLE_BOS},
    {"gpt-4o", patterns_gpt4o, PLAIN},
    {"llama4", patterns_gpt4o, PLAIN},
    {"kanana2", patterns_gpt4o, PLAIN},
    {"kimi-k2", patterns_kimi_k2, {.ranks = true}},
    {"seed-coder", patterns_seed_coder, PLAIN},
    {"starcoder", patterns_starcoder, PLAIN},
    {"refact", patterns_starcoder, PLAIN},
    {"command-r", patterns_starcoder, COMPOSED},
    {"smollm", patterns_starcoder, PLAIN},
    {"codeshell", patterns_starcoder, PLAIN},
    {"exaone", patterns_starcoder, PLAIN},
    {"minerva-7b", patterns_starcoder, PLAIN},
    {"falcon", patterns_falcon, PLAIN},
    {"deepseek-llm", patterns_deepseek_llm, PLAIN},
    {"deepseek-coder", patterns_deepseek_coder, PLAIN},
    {"deepseek-v3", patterns_deepseek3, PLAIN},
    {"hunyuan-dense", patterns_deepseek3, PLAIN},
    {"joyai-llm", patterns_deepseek3, PLAIN},
};

static const struct pre_name *find_name(const char *name, size_t len)
{
    for (size_t i = 0; i < PI_LEN(names); i++) {
        if (strlen(names[i].name) == len && memcmp(names[i].name, name, len) == 0)
            return &names[i];
    }
    return NULL;
}

/* ---- compiling ---- */

static void *pre_alloc(size_t size, void *user)
{
    (void)user;
    return pi_mem_alloc(PI_MEM_MODEL, size);
}

static void pre_release(void *block, void *user)
{
    (void)user;
    pi_mem_free(block);
}

static pith_status compile(struct pi_pre *pre, const char *const *patterns, pith_error *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(pre->memory);
    if (context == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a pre-tokenizer");
    pith_status status = PITH_OK;
    for (; patterns[pre->n_code] != NULL && status == PITH_OK; pre->n_code++) {
        int code;
        PCRE2_SIZE at;
        pcre2_code *made = pcre2_compile((PCRE2_SPTR)patterns[pre->n_code], PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &at, context);
        if (made == NULL) {
            status =
                code == PCRE2_ERROR_HEAP_FAILED
                    ? pi_fail(err, PITH_NOMEM, "no memory for a pre-tokenizer")
                    : pi_fail(err, PITH_INTERNAL, "pre-tokenizer pattern %d: error %d at byte %zu",
                              pre->n_code, code, (size_t)at);
            break;
        }
        pre->code[pre->n_code] = made;
        /* Where the system forbids code made at run time, matching falls back to the
           interpreter. */
        pcre2_jit_compile(made, PCRE2_JIT_COMPLETE);
    }
    pcre2_compile_context_free(context);
    return status;
}

pith_status pi_pre_create(const char *name, size_t len, struct pi_pre **out,
                          struct pi_pre_traits *traits, pith_error *err)
{
    const struct pre_name *known = find_name(name, len);
    if (known == NULL)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "tokenizer.ggml.pre: the pre-tokenizer \"%.*s\" is not known to Pith",
                       (int)(len < 60 ? len : 60), name);
    struct pi_pre *pre = pi_mem_alloc(PI_MEM_MODEL, sizeof(*pre));
    if (pre == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a pre-tokenizer");
    pre->memory = pcre2_general_context_create(pre_alloc, pre_release, NULL);
    pith_status status = pre->memory != NULL
                             ? compile(pre, known->patterns, err)
                             : pi_fail(err, PITH_NOMEM, "no memory for a pre-tokenizer");
    if (status != PITH_OK) {
        pi_pre_free(pre);
        return status;
    }
    *traits = known->traits;
    *out = pre;
    return PITH_OK;
}

void pi_pre_free(struct pi_pre *pre)
{
    if (pre == NULL)
        return;
    for (int32_t i = 0; i < PATTERN_MAX; i++)
        pcre2_code_free(pre->code[i]);
    pcre2_general_context_free(pre->memory);
    pi_mem_free(pre);
}

/* ---- splitting ---- */

pith_status pi_pre_begin(const struct pi_pre *pre, struct pi_pre_scratch *scratch, pith_error *err)
{
    for (; scratch->n_match < pre->n_code; scratch->n_match++) {
        /* One pair is enough: only the bounds of the whole match are asked for. */
        pcre2_match_data *match = pcre2_match_data_create(1, pre->memory);
        if (match == NULL)
            return pi_fail(err, PITH_NOMEM, "no memory to split text into words");
        scratch->match[scratch->n_match] = match;
    }
    return PITH_OK;
}

void pi_pre_end(struct pi_pre_scratch *scratch)
{
    while (scratch->n_match > 0)
        pcre2_match_data_free(scratch->match[--scratch->n_match]);
}

struct split {
    const struct pi_pre *pre;
    struct pi_pre_scratch *scratch;
    pi_word_fn *fn;
    void *user;
    pith_error *err;
};

/* Finds the next match of pattern i from *at; sets [*at, *end) to it, or both to len. */
static pith_status next_match(const struct split *s, int32_t i, const char *text, size_t len,
                              size_t *at, size_t *end)
{
    pcre2_match_data *match = s->scratch->match[i];
    int rc =
        pcre2_match(s->pre->code[i], (PCRE2_SPTR)text, len, *at, PCRE2_NO_UTF_CHECK, match, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(s->pre->code[i], (PCRE2_SPTR)text, len, *at,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, NULL);
    if (rc == PCRE2_ERROR_NOMATCH) {
        *at = *end = len;
        return PITH_OK;
    }
    if (rc < 0)
        return rc == PCRE2_ERROR_NOMEMORY
                   ? pi_fail(s->err, PITH_NOMEM, "no memory to split text into words")
                   : pi_fail(s->err, PITH_INTERNAL, "pre-tokenizer pattern %d: match error %d", i,
                             rc);
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(match);
    *at = bounds[0];
    *end = bounds[1];
    return PITH_OK;
}

/* Cuts one piece by pattern i and those behind it; as deep as there are patterns. */
static pith_status split_piece(const struct split *s, int32_t i, const char *text, size_t len)
{
    if (i == s->pre->n_code)
        return s->fn(s->user, text, len, s->err);
    size_t done = 0;
    while (done < len) {
        size_t at = done, end = len;
        PI_TRY(next_match(s, i, text, len, &at, &end));
        if (at > done)
            PI_TRY(split_piece(s, i + 1, text + done, at - done));
        if (end > at)
            PI_TRY(split_piece(s, i + 1, text + at, end - at));
        done = end;
    }
    return PITH_OK;
}

pith_status pi_pre_split(const struct pi_pre *pre, struct pi_pre_scratch *scratch, const char *text,
                         size_t len, pi_word_fn *fn, void *user, pith_error *err)
{
    struct split s = {pre, scratch, fn, user, err};
    while (len > 0) {
        size_t whole = pi_utf8_span(text, len), bad = whole;
        PI_TRY(split_piece(&s, 0, text, whole));
        while (bad < len) {
            struct pi_utf8_char c = pi_utf8_next(text + bad, len - bad);
            if (c.valid)
                break;
            bad += c.len;
        }
        if (bad > whole)
            PI_TRY(fn(user, text + whole, bad - whole, err));
        text += bad;
        len -= bad;
    }
    return PITH_OK;
}
