/*
 * ruler_qa.c - RULER's qa_1 and qa_2: questions of SQuAD and HotpotQA among documents of the same
 * file. The files are the data sets' own.
 *
 * Invariant: a larger prompt has the documents of a smaller one, in another order.
 */
#include "ruler.h"

#include <stdlib.h>
#include <string.h>

/* ---- files ---- */

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "ruler: no memory for documents");
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted, each once. */
static void sort_docs(struct eval_strings *docs)
{
    int32_t n = 0;
    if (docs->n > 0)
        qsort(docs->at, (size_t)docs->n, sizeof(*docs->at), by_text);
    for (int32_t i = 0; i < docs->n; i++) {
        if (n > 0 && strcmp(docs->at[n - 1], docs->at[i]) == 0)
            free(docs->at[i]);
        else
            docs->at[n++] = docs->at[i];
    }
    docs->n = n;
}

static int32_t find_doc(const struct ruler_qa *qa, const char *text)
{
    char **at = bsearch(&text, qa->docs.at, (size_t)qa->docs.n, sizeof(*at), by_text);
    return at != NULL ? (int32_t)(at - qa->docs.at) : -1;
}

/* A text of a JSON object or list; "" where it is none. */
static const char *text_of(const json_t *value)
{
    return json_is_string(value) ? json_string_value(value) : "";
}

static const json_t *get(const json_t *object, const char *key)
{
    return json_object_get(object, key);
}

static struct ruler_question *add_question(struct ruler_qa *qa, const json_t *query, int32_t n_doc)
{
    if (qa->n == qa->cap) {
        int32_t cap = 2 * qa->cap + 64;
        struct ruler_question *grown = realloc(qa->question, (size_t)cap * sizeof(*grown));
        if (grown == NULL)
            return NULL;
        qa->question = grown;
        qa->cap = cap;
    }
    struct ruler_question *q = &qa->question[qa->n];
    *q = (struct ruler_question){.query = eval_copy(text_of(query)),
                                 .doc = malloc(((size_t)n_doc + 1) * sizeof(*q->doc))};
    qa->n++;
    return q->query != NULL && q->doc != NULL ? q : NULL;
}

/* A title and its sentences as one document. */
static void write_doc(const json_t *pair, struct eval_text *out)
{
    size_t i;
    const json_t *sentence;
    eval_text_clear(out);
    eval_text_printf(out, "%s\n", text_of(json_array_get(pair, 0)));
    json_array_foreach(json_array_get(pair, 1), i, sentence) eval_text_add(out, text_of(sentence));
}

static bool read_hotpot(struct ruler_qa *qa, const json_t *json)
{
    size_t i, k;
    const json_t *item, *pair;
    struct eval_text doc = {0};
    json_array_foreach(json, i, item) json_array_foreach(get(item, "context"), k, pair)
    {
        write_doc(pair, &doc);
        eval_strings_add(&qa->docs, doc.data);
    }
    sort_docs(&qa->docs);
    bool ok = !qa->docs.failed;
    json_array_foreach(json, i, item)
    {
        const json_t *context = get(item, "context");
        struct ruler_question *q =
            ok ? add_question(qa, get(item, "question"), (int32_t)json_array_size(context)) : NULL;
        ok = ok && q != NULL;
        if (!ok)
            break;
        eval_strings_add(&q->answers, text_of(get(item, "answer")));
        json_array_foreach(context, k, pair)
        {
            write_doc(pair, &doc);
            q->doc[q->n_doc++] = find_doc(qa, doc.data);
        }
        q->n_own = q->n_doc;
        ok = !q->answers.failed;
    }
    ok = ok && !doc.failed;
    eval_text_free(&doc);
    return ok;
}

/* The questions of one paragraph; the other paragraphs of its article are near it. */
static bool read_paragraph(struct ruler_qa *qa, const json_t *article, const json_t *paragraph)
{
    size_t i, k;
    const json_t *one, *other, *answer, *paragraphs = get(article, "paragraphs");
    int32_t own = find_doc(qa, text_of(get(paragraph, "context")));
    json_array_foreach(get(paragraph, "qas"), i, one)
    {
        if (json_is_true(get(one, "is_impossible")))
            continue;
        struct ruler_question *q =
            add_question(qa, get(one, "question"), (int32_t)json_array_size(paragraphs) + 1);
        if (q == NULL)
            return false;
        json_array_foreach(get(one, "answers"), k, answer)
            eval_strings_add(&q->answers, text_of(get(answer, "text")));
        q->doc[q->n_doc++] = own;
        q->n_own = 1;
        json_array_foreach(paragraphs, k, other)
        {
            int32_t near = find_doc(qa, text_of(get(other, "context")));
            if (near != own)
                q->doc[q->n_doc++] = near;
        }
        if (q->answers.failed)
            return false;
    }
    return true;
}

static bool read_squad(struct ruler_qa *qa, const json_t *json)
{
    size_t i, k;
    const json_t *article, *paragraph;
    json_array_foreach(json, i, article)
        json_array_foreach(get(article, "paragraphs"), k, paragraph)
            eval_strings_add(&qa->docs, text_of(get(paragraph, "context")));
    sort_docs(&qa->docs);
    bool ok = !qa->docs.failed;
    json_array_foreach(json, i, article)
        json_array_foreach(get(article, "paragraphs"), k, paragraph) ok =
            ok && read_paragraph(qa, article, paragraph);
    return ok;
}

/* Whether it can be asked: with its documents, and an answer that not every text holds. */
static bool is_whole(const struct ruler_question *q)
{
    bool whole = q->query[0] != '\0' && q->n_own > 0 && q->answers.n > 0;
    for (int32_t i = 0; i < q->answers.n; i++)
        whole = whole && q->answers.at[i][0] != '\0';
    return whole;
}

/* The first question that cannot be asked; -1: none. */
static int32_t find_part(const struct ruler_qa *qa)
{
    for (int32_t i = 0; i < qa->n; i++)
        if (!is_whole(&qa->question[i]))
            return i;
    return -1;
}

pith_status eval_ruler_qa_read(const char *path, bool squad, struct ruler_qa *out, pith_error *err)
{
    char *text = NULL;
    size_t len = 0;
    json_error_t why;
    *out = (struct ruler_qa){0};
    pith_status status = eval_read_file(path, &text, &len, err);
    json_t *json = status == PITH_OK ? json_loadb(text, len, 0, &why) : NULL;
    free(text);
    if (status != PITH_OK)
        return status;
    const json_t *list = squad ? get(json, "data") : json;
    if (!json_is_array(list))
        status = eval_fail(err, PITH_FORMAT, "ruler: %.100s is no file of %s", path,
                           squad ? "SQuAD" : "HotpotQA");
    else if (!(squad ? read_squad(out, list) : read_hotpot(out, list)))
        status = no_memory(err);
    else if (out->n == 0)
        status = eval_fail(err, PITH_FORMAT, "ruler: %.100s has no question", path);
    else if (find_part(out) >= 0)
        status = eval_fail(err, PITH_FORMAT,
                           "ruler: %.100s: question %d has no text, no answer or no document", path,
                           (int)find_part(out) + 1);
    json_decref(json);
    return status;
}

void eval_ruler_qa_free(struct ruler_qa *qa)
{
    for (int32_t i = 0; i < qa->n; i++) {
        free(qa->question[i].query);
        free(qa->question[i].doc);
        eval_strings_free(&qa->question[i].answers);
    }
    free(qa->question);
    eval_strings_free(&qa->docs);
    *qa = (struct ruler_qa){0};
}

/* ---- prompts ---- */

/* The order in which documents come into a prompt: the question's own, those near them, the others.
   order [qa->docs.n] */
static void order_docs(const struct ruler_qa *qa, const struct ruler_question *q,
                       struct eval_rng *rng, bool *taken, int32_t *order)
{
    int32_t n = 0;
    for (int32_t i = 0; i < q->n_doc; i++)
        if (!taken[q->doc[i]]) {
            taken[q->doc[i]] = true;
            order[n++] = q->doc[i];
        }
    int32_t own = q->n_own < n ? q->n_own : n;
    eval_rng_shuffle(rng, order + own, (size_t)(n - own), sizeof(*order));
    int32_t others = n;
    for (int32_t d = 0; d < qa->docs.n; d++)
        if (!taken[d])
            order[n++] = d;
    eval_rng_shuffle(rng, order + others, (size_t)(n - others), sizeof(*order));
}

static const char ask_text[] = "Answer the question based on the given documents. Only give me the "
                               "answer and do not output any other words.";

pith_status eval_build_qa(void *user, int32_t size, struct eval_prompt *out, pith_error *err)
{
    const struct ruler_build *b = user;
    const struct ruler_qa *qa = b->item->qa;
    const struct ruler_question *q = &qa->question[b->item->sample % qa->n];
    struct eval_rng rng = eval_ruler_rng(b, RULER_FILL), places = eval_ruler_rng(b, RULER_PLACES);
    int32_t n = size > q->n_own ? size : q->n_own;
    bool *taken = calloc((size_t)qa->docs.n, sizeof(*taken));
    int32_t *order = malloc((size_t)qa->docs.n * sizeof(*order));
    int32_t *shown = malloc((size_t)n * sizeof(*shown));
    bool ok = taken != NULL && order != NULL && shown != NULL;
    if (ok) {
        order_docs(qa, q, &rng, taken, order);
        for (int32_t i = 0; i < n; i++) /* from the first on again where there are no more */
            shown[i] = order[i % qa->docs.n];
        eval_rng_shuffle(&places, shown, (size_t)n, sizeof(*shown));
        eval_text_printf(&out->text, "%s\n\nThe following are given documents.\n", ask_text);
        for (int32_t i = 0; i < n; i++)
            eval_text_printf(&out->text, "\nDocument %d:\n%s\n", (int)(i + 1),
                             qa->docs.at[shown[i]]);
        eval_text_printf(&out->text, "\n%s\n\nQuestion: %s", ask_text, q->query);
        eval_text_add(&out->prefix, " Answer:");
        for (int32_t i = 0; i < q->answers.n; i++)
            eval_strings_add(&out->refs, q->answers.at[i]);
    }
    free(taken);
    free(order);
    free(shown);
    return ok ? PITH_OK : no_memory(err);
}
