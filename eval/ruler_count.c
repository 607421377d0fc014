/*
 * ruler_count.c - RULER's counting tasks. Common words: a numbered list in which ten words stand
 * far oftener than the others. Frequent words: coded words whose counts fall with the square of
 * their rank; the first rank is dots, asked are the next three.
 *
 * Invariant: which words are the answer does not depend on the size of the list.
 */
#include "ruler.h"

#include <stdlib.h>
#include <string.h>

/* ---- common words ---- */

#define N_COMMON 10
#define SHORT_LENGTH 4096  /* below, lists have fewer repetitions, as RULER has it */
#define TOKENS_PER_ENTRY 4 /* at least, of " 12. word" */

struct repeats {
    int32_t common;
    int32_t other;
};

static struct repeats main_repeats(const struct ruler_item *item)
{
    return item->length < SHORT_LENGTH ? (struct repeats){6, 1} : (struct repeats){30, 3};
}

/* The most distinct words that a list of the item's length can hold. */
static int32_t most_words(const struct ruler_item *item)
{
    struct repeats r = main_repeats(item);
    int32_t rest = item->length / TOKENS_PER_ENTRY - N_COMMON * r.common;
    return N_COMMON + (rest > 0 ? rest / r.other : 0);
}

/* All words of the lists, and as many invented ones as a list of this length can need, shuffled. So
   the common ones are of the same kinds as the others. */
pith_status eval_prepare_cwe(struct ruler_build *b, const struct eval_counter *counter,
                             pith_error *err)
{
    static const struct eval_word_list *const lists[] = {&eval_adjectives, &eval_things,
                                                         &eval_places, &eval_roles};
    (void)counter;
    struct eval_rng rng = eval_ruler_rng(b, RULER_FACTS);
    for (int i = 0; i < 4; i++) {
        for (int32_t j = 0; j < lists[i]->n; j++)
            eval_strings_add(&b->pool, lists[i]->word[j]);
    }
    int32_t most = most_words(b->item);
    while (b->pool.n < most && !b->pool.failed) {
        char word[EVAL_INVENTED_SIZE];
        eval_invent(&rng, word);
        if (!eval_strings_has(&b->pool, word))
            eval_strings_add(&b->pool, word);
    }
    if (b->pool.failed)
        return eval_fail(err, PITH_NOMEM, "cwe: no memory for words");
    eval_rng_shuffle(&rng, b->pool.at, (size_t)b->pool.n, sizeof(*b->pool.at));
    return PITH_OK;
}

/* The numbered list of words [n] of the pool from first on, the first N_COMMON of them oftener. */
static pith_status add_list(const struct eval_strings *pool, int32_t first, int32_t n,
                            struct repeats repeats, struct eval_rng *rng, struct eval_text *out,
                            pith_error *err)
{
    int32_t total = N_COMMON * repeats.common + (n - N_COMMON) * repeats.other, k = 0;
    const char **words = malloc((size_t)total * sizeof(*words));
    if (words == NULL)
        return eval_fail(err, PITH_NOMEM, "cwe: no memory for a list of %d words", (int)total);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < (i < N_COMMON ? repeats.common : repeats.other); j++)
            words[k++] = pool->at[(first + i) % pool->n];
    }
    eval_rng_shuffle(rng, words, (size_t)total, sizeof(*words));
    eval_text_add(out, "Below is a numbered list of words. In these words, some appear more often"
                       " than others. Memorize the ones that appear most often.\n");
    for (int32_t i = 0; i < total; i++)
        eval_text_printf(out, "%s%d. %s", i > 0 ? " " : "", (int)(i + 1), words[i]);
    eval_text_add(out, "\nQuestion: What are the 10 most common words in the above list?");
    free(words);
    return PITH_OK;
}

static const char cwe_prefix[] =
    " Answer: The top 10 words that appear most often in the list are:";

pith_status eval_build_cwe(void *user, int32_t size, struct eval_prompt *out, pith_error *err)
{
    const struct ruler_build *b = user;
    struct eval_rng rng = eval_ruler_rng(b, RULER_FILL);
    if (b->item->example) {
        bool brief = b->item->length < SHORT_LENGTH;
        struct repeats repeats = brief ? (struct repeats){3, 1} : (struct repeats){10, 3};
        struct eval_rng own = eval_ruler_rng(b, RULER_EXAMPLE);
        /* Words from the end of the pool: the list below starts at its front. */
        int32_t n = brief ? 20 : 40, first = b->pool.n - n;
        pith_status status = add_list(&b->pool, first, n, repeats, &own, &out->text, err);
        if (status != PITH_OK)
            return status;
        eval_text_add(&out->text, cwe_prefix);
        for (int32_t i = 0; i < N_COMMON; i++)
            eval_text_printf(&out->text, " %d. %s", (int)(i + 1), b->pool.at[first + i]);
        eval_text_add(&out->text, "\n");
    }
    for (int32_t i = 0; i < N_COMMON; i++)
        eval_strings_add(&out->refs, b->pool.at[i]);
    eval_text_add(&out->prefix, cwe_prefix);
    int32_t n = size < b->pool.n ? size : b->pool.n;
    return add_list(&b->pool, 0, n, main_repeats(b->item), &rng, &out->text, err);
}

/* ---- frequent words ---- */

#define CODE_LEN 6
#define TOKENS_PER_CODE                                                                            \
    50 /* the vocabulary has one code word for every TOKENS_PER_CODE tokens of
                              the length */
#define N_FREQUENT 3
#define ZETA_2 1.6449340668482264 /* the sum of 1/k^2 */

/* Code words by rank; the first is noise and is dots. */
pith_status eval_prepare_fwe(struct ruler_build *b, const struct eval_counter *counter,
                             pith_error *err)
{
    (void)counter;
    struct eval_rng rng = eval_ruler_rng(b, RULER_FACTS);
    int32_t n = b->item->length / TOKENS_PER_CODE;
    if (n < N_FREQUENT + 2)
        n = N_FREQUENT + 2;
    eval_strings_add(&b->pool, "...");
    while (b->pool.n < n && !b->pool.failed) {
        char word[CODE_LEN + 1] = "";
        for (int i = 0; i < CODE_LEN; i++)
            word[i] = (char)('a' + eval_rng_below(&rng, 26));
        if (!eval_strings_has(&b->pool, word))
            eval_strings_add(&b->pool, word);
    }
    if (b->pool.failed)
        return eval_fail(err, PITH_NOMEM, "fwe: no memory for words");
    return PITH_OK;
}

/* How often rank k (from 1) stands in a text of size words. Ranks 1 to 5 are kept apart where
   rounding makes them equal, as it does in short texts: otherwise the answer would not be one. */
static int32_t count_of_rank(int32_t size, int32_t k)
{
    int32_t count = (int32_t)(size / ((double)k * k) / ZETA_2);
    for (int32_t j = N_FREQUENT + 2; j > k; j--) {
        int32_t above = (int32_t)(size / ((double)j * j) / ZETA_2) + (j - k);
        if (count < above)
            count = above;
    }
    return count;
}

pith_status eval_build_fwe(void *user, int32_t size, struct eval_prompt *out, pith_error *err)
{
    const struct ruler_build *b = user;
    struct eval_rng rng = eval_ruler_rng(b, RULER_FILL);
    size_t total = 0, k = 0;
    for (int32_t i = 0; i < b->pool.n; i++)
        total += (size_t)count_of_rank(size, i + 1);
    const char **words = malloc((total + 1) * sizeof(*words));
    if (words == NULL)
        return eval_fail(err, PITH_NOMEM, "fwe: no memory for a text of %d words", (int)size);
    for (int32_t i = 0; i < b->pool.n; i++) {
        for (int32_t j = count_of_rank(size, i + 1); j > 0; j--)
            words[k++] = b->pool.at[i];
    }
    eval_rng_shuffle(&rng, words, total, sizeof(*words));
    eval_text_add(&out->text,
                  "Read the following coded text and track the frequency of each coded word. Find"
                  " the three most frequently appeared coded words. ");
    for (size_t i = 0; i < total; i++)
        eval_text_printf(&out->text, "%s%s", i > 0 ? " " : "", words[i]);
    eval_text_add(&out->text,
                  "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What"
                  " are the three most frequently appeared words in the above coded text?");
    eval_text_add(&out->prefix, " Answer: According to the coded text above, the three most"
                                " frequently appeared words are:");
    for (int i = 1; i <= N_FREQUENT; i++)
        eval_strings_add(&out->refs, b->pool.at[i]);
    free(words);
    return PITH_OK;
}
