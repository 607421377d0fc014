/*
 * near.c - likeness of names, for "did you mean". A pure function of the words.
 */
#include "base/near.h"

#include <string.h>

#define NAME_LEN_MAX 40 /* longer words are not compared */

/* The edit distance of the first n bytes of a from b, and in *beginning from the beginning of b
   that is nearest. Neighbours may be swapped (optimal string alignment: Boytsov, "Indexing methods
   for approximate dictionary searching", 2011, section 2.1). */
static size_t distance(const char *a, size_t n, const char *b, size_t *beginning)
{
    size_t row[3][NAME_LEN_MAX + 1];
    size_t m = strlen(b);
    *beginning = NAME_LEN_MAX;
    if (n > NAME_LEN_MAX || m > NAME_LEN_MAX)
        return NAME_LEN_MAX;
    for (size_t j = 0; j <= m; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t *now = row[i % 3], *last = row[(i - 1) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    for (size_t j = 0; j <= m; j++)
        if (row[n % 3][j] < *beginning)
            *beginning = row[n % 3][j];
    return row[n % 3][m];
}

/* Where a name is near as a whole, the nearest; else the only one that the word begins. The word
   then has three letters or more, and from four on one of them may be wrong. */
const char *pi_nearest(const char *word, size_t len, const char *const *names, size_t n)
{
    const char *best = NULL, *begun = NULL;
    size_t best_distance = len / 3 + 1, beginning;
    int n_begun = 0;
    for (size_t i = 0; i < n; i++) {
        if (names[i] == NULL)
            continue;
        size_t d = distance(word, len, names[i], &beginning);
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
        if (len >= 3 && beginning <= (len > 3)) {
            begun = names[i];
            n_begun++;
        }
    }
    return best != NULL ? best : n_begun == 1 ? begun : NULL;
}
