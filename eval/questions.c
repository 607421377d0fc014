/*
 * questions.c - `pith eval questions`: problems with known answers, each asked several times with
 * sampling. The final answer is taken out of the model's text and compared.
 *
 * The figure is the mean over problems of the share of right answers. Its interval is Wilson's with
 * as many trials as there are problems, since draws of one problem are not independent. A mean of
 * shares varies at most as much as single draws do, so the interval is, if anything, too wide.
 *
 * Invariant: the tokens of a draw depend on the seed, the problem's place in the file and the draw.
 */
#include "questions.h"

#include "answers.h"
#include "lines.h"
#include "parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ---- */

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "questions: no memory");
}

/* A reference as text: whole numbers without a point, GSM8K's solution without its working. */
static char *reference(const json_t *answer)
{
    char buf[64];
    if (json_is_integer(answer)) {
        snprintf(buf, sizeof(buf), "%lld", (long long)json_integer_value(answer));
        return eval_copy(buf);
    }
    if (json_is_real(answer)) {
        snprintf(buf, sizeof(buf), "%.15g", json_real_value(answer));
        return eval_copy(buf);
    }
    const char *text = json_string_value(answer);
    for (const char *mark = strstr(text, "####"); mark != NULL; mark = strstr(text, "####"))
        text = mark + 4;
    while (*text == ' ')
        text++;
    return eval_copy(text);
}

/* A list of texts in one, with commas between them. */
static char *join(const json_t *list)
{
    struct eval_text t = {0};
    for (size_t i = 0; i < json_array_size(list); i++)
        eval_text_printf(&t, "%s%s", i > 0 ? ", " : "",
                         json_is_string(json_array_get(list, i))
                             ? json_string_value(json_array_get(list, i))
                             : "");
    eval_text_add(&t, "");
    return t.failed ? NULL : t.data;
}

/* Puts choices [n] behind the problem, each with its letter. */
static char *with_choices(const char *problem, const char *const *choice, int32_t n)
{
    struct eval_text t = {0};
    eval_text_printf(&t, "%s\n", problem);
    for (int32_t i = 0; i < n; i++)
        eval_text_printf(&t, "\n(%c) %s", 'A' + i, choice[i]);
    return t.failed ? NULL : t.data;
}

#define CHOICES_MAX 26

/* The place of the right one among choices [n]; -1: the answer names none. */
static int32_t right_choice(const json_t *answer, const char *const *choice, int32_t n)
{
    if (json_is_integer(answer))
        return (int32_t)(json_integer_value(answer) >= 0 && json_integer_value(answer) < n
                             ? json_integer_value(answer)
                             : -1);
    const char *text = json_is_string(answer) ? json_string_value(answer) : "";
    for (int32_t i = 0; i < n; i++)
        if (strcmp(choice[i], text) == 0)
            return i;
    bool letter = text[0] >= 'A' && text[0] < 'A' + n && text[1] == '\0';
    return letter ? text[0] - 'A' : -1;
}

static pith_status take_choices(struct question *q, const char *problem, const char *const *choice,
                                int32_t n, int32_t right, int32_t line, pith_error *err)
{
    char letter[2] = {(char)('A' + right), '\0'};
    if (right < 0)
        return eval_fail(err, PITH_FORMAT, "questions: line %d: answer is none of its choices",
                         (int)line);
    q->n_choice = n;
    q->problem = with_choices(problem, choice, n);
    q->answer = eval_copy(letter);
    return q->problem != NULL && q->answer != NULL ? PITH_OK : no_memory(err);
}

/* GPQA's right answer and the three others, in an order that the line's number draws. */
static pith_status read_gpqa(const json_t *json, int32_t line, struct question *q, pith_error *err)
{
    static const char *const fields[] = {"Correct Answer", "Incorrect Answer 1",
                                         "Incorrect Answer 2", "Incorrect Answer 3"};
    const char *choice[4], *correct = NULL;
    int32_t right = 0;
    for (int32_t i = 0; i < 4; i++) {
        const json_t *value = json_object_get(json, fields[i]);
        if (!json_is_string(value))
            return eval_fail(err, PITH_FORMAT, "questions: line %d: \"%s\" is no text", (int)line,
                             fields[i]);
        choice[i] = json_string_value(value);
    }
    correct = choice[0];
    struct eval_rng rng = eval_rng_make(0, (uint64_t)line, 0);
    eval_rng_shuffle(&rng, choice, 4, sizeof(choice[0]));
    while (choice[right] != correct)
        right++;
    return take_choices(q, json_string_value(json_object_get(json, "Question")), choice, 4, right,
                        line, err);
}

static pith_status read_choices(const json_t *json, const char *problem, const json_t *list,
                                int32_t line, struct question *q, pith_error *err)
{
    const char *choice[CHOICES_MAX];
    size_t n = json_array_size(list);
    if (n < 2 || n > CHOICES_MAX)
        return eval_fail(err, PITH_FORMAT, "questions: line %d has %zu choices", (int)line, n);
    for (size_t i = 0; i < n; i++) {
        if (!json_is_string(json_array_get(list, i)))
            return eval_fail(err, PITH_FORMAT, "questions: line %d: choice %zu is no text",
                             (int)line, i);
        choice[i] = json_string_value(json_array_get(list, i));
    }
    int32_t right = right_choice(json_object_get(json, "answer"), choice, (int32_t)n);
    return take_choices(q, problem, choice, (int32_t)n, right, line, err);
}

/* The right answer: as such, as a list of final ones, or at the end of a solution. */
static pith_status find_answer(const json_t *json, int32_t line, struct question *q,
                               pith_error *err)
{
    const json_t *answer = json_object_get(json, "answer");
    const json_t *final = json_object_get(json, "final_answer");
    const json_t *solution = json_object_get(json, "solution");
    if (json_is_string(answer) || json_is_number(answer)) {
        q->answer = reference(answer);
    } else if (json_array_size(final) > 0) {
        q->answer = join(final);
        q->any_order =
            json_array_size(final) > 1 || json_is_true(json_object_get(json, "is_multiple_answer"));
    } else if (json_is_string(solution)) {
        return eval_final_answer(json_string_value(solution), NULL, false, &q->answer, err);
    } else {
        return eval_fail(err, PITH_FORMAT,
                         "questions: line %d: answer is no text or number, and there is neither "
                         "final_answer nor solution",
                         (int)line);
    }
    return q->answer != NULL ? PITH_OK : no_memory(err);
}

/* Nothing that a model writes equals an answer of no text. */
static pith_status read_answer(const json_t *json, int32_t line, struct question *q,
                               pith_error *err)
{
    pith_status status = find_answer(json, line, q, err);
    if (status == PITH_OK && q->answer[strspn(q->answer, " \t\r\n,")] == '\0')
        status = eval_fail(err, PITH_FORMAT,
                           "questions: line %d: there is no right answer in answer, final_answer "
                           "or solution",
                           (int)line);
    return status;
}

static pith_status read_line(const json_t *json, int32_t line, struct question *q, pith_error *err)
{
    static const char *const problems[] = {"problem", "question", "Question"};
    static const char *const names[] = {"id", "unique_id", "Record ID"};
    const json_t *problem = NULL, *id = NULL, *choices = json_object_get(json, "choices");
    for (int i = 0; i < 3; i++) {
        problem = json_is_string(problem) ? problem : json_object_get(json, problems[i]);
        id = json_is_string(id) ? id : json_object_get(json, names[i]);
    }
    if (!json_is_string(problem))
        return eval_fail(err, PITH_FORMAT, "questions: line %d has neither problem nor question",
                         (int)line);
    char name[32];
    snprintf(name, sizeof(name), "line %d", (int)line);
    q->name = eval_copy(json_is_string(id) ? json_string_value(id) : name);
    if (q->name == NULL)
        return no_memory(err);
    if (!json_is_array(choices))
        choices = json_object_get(json, "options");
    if (json_object_get(json, "Correct Answer") != NULL)
        return read_gpqa(json, line, q, err);
    if (json_is_array(choices))
        return read_choices(json, json_string_value(problem), choices, line, q, err);
    q->problem = eval_copy(json_string_value(problem));
    return q->problem != NULL ? read_answer(json, line, q, err) : no_memory(err);
}

/* A file that is being read. */
struct reading {
    struct question_file *file;
    int32_t cap;
};

static pith_status add_question(void *user, const json_t *json, int32_t line, pith_error *err)
{
    struct reading *r = user;
    struct question_file *f = r->file;
    struct question *grown = eval_lines_grow(f->question, f->n, &r->cap, sizeof(*grown));
    if (grown == NULL)
        return no_memory(err);
    f->question = grown;
    f->question[f->n] = (struct question){0};
    f->n++; /* half a question is freed too */
    return read_line(json, line, &f->question[f->n - 1], err);
}

pith_status eval_questions_parse(const char *text, size_t len, struct question_file *out,
                                 pith_error *err)
{
    struct reading r = {.file = out};
    *out = (struct question_file){0};
    return eval_lines_read(text, len, "questions", add_question, &r, err);
}

void eval_questions_free(struct question_file *f)
{
    for (int32_t i = 0; i < f->n; i++) {
        free(f->question[i].problem);
        free(f->question[i].answer);
        free(f->question[i].name);
    }
    free(f->question);
    *f = (struct question_file){0};
}

/* ---- the run ---- */

struct questions_run {
    const struct eval_setup *setup;
    const struct eval_questions_params *params;
    struct eval_run *run;
    struct question_file file;
    int32_t n_question;
    struct eval_prompt *prompts; /* [n_question] owned */
    struct eval_asked *asked;    /* [n_question * n_draw] owned, a question's draws together */
    int32_t n_asked;
    double passed;    /* sum of the questions' pass rates */
    int32_t answered; /* draws from which a final answer could be taken */
    json_t *rows;
};

static pith_status make_prompt(const struct questions_run *r, const struct question *q,
                               struct eval_prompt *out, pith_error *err)
{
    eval_text_add(&out->text, q->problem);
    if (r->params->instruction != NULL && r->params->instruction[0] != '\0')
        eval_text_printf(&out->text, "\n%s", r->params->instruction);
    return eval_prompt_check(out, err);
}

/* Writes all prompts, and *longest: the tokens of the longest. */
static pith_status make_prompts(struct questions_run *r, int32_t *longest, pith_error *err)
{
    struct eval_counter counter = eval_counter_of(r->setup);
    int32_t n_draw = r->params->n_draw;
    pith_status status = PITH_OK;
    if (r->n_question > INT32_MAX / n_draw)
        return eval_fail(err, PITH_INVALID, "questions: draws = %d of %d problems are too many",
                         (int)n_draw, (int)r->n_question);
    r->n_asked = r->n_question * n_draw;
    r->prompts = calloc((size_t)r->n_question, sizeof(*r->prompts));
    r->asked = calloc((size_t)r->n_asked, sizeof(*r->asked));
    if (r->n_question > 0 && (r->prompts == NULL || r->asked == NULL))
        return no_memory(err);
    *longest = 0;
    for (int32_t i = 0; i < r->n_question && status == PITH_OK; i++) {
        const struct eval_text *text = &r->prompts[i].text;
        int32_t n = 0;
        status = make_prompt(r, &r->file.question[i], &r->prompts[i], err);
        if (status == PITH_OK)
            status =
                counter.count(counter.user, text->data != NULL ? text->data : "", NULL, &n, err);
        *longest = n > *longest ? n : *longest;
    }
    for (int32_t i = 0; i < r->n_asked; i++) {
        struct eval_rng rng =
            eval_rng_make(r->setup->seed, (uint64_t)(i / n_draw), (uint64_t)(i % n_draw));
        r->asked[i].prompt = &r->prompts[i / n_draw];
        r->asked[i].n_predict = r->params->n_predict;
        r->asked[i].sample = r->params->sample;
        r->asked[i].sample.seed = eval_rng_next(&rng);
    }
    return status;
}

/* The final answer of an answer, which of choices is a letter. The caller frees. */
static pith_status final_answer(const struct question *q, const char *answer, bool cut, char **said,
                                pith_error *err)
{
    char letter[2] = {'\0', '\0'};
    if (q->n_choice == 0)
        return eval_final_answer(answer, q->problem, cut, said, err);
    pith_status status = eval_final_choice(answer, q->problem, q->n_choice, &letter[0], err);
    if (status == PITH_OK && (*said = eval_copy(letter)) == NULL)
        status = no_memory(err);
    return status;
}

/* Takes the final answer out of an answer and compares it. */
static pith_status judge(struct questions_run *r, const struct question *q,
                         const struct eval_asked *a, int32_t *right, json_t *answers, json_t *texts,
                         pith_error *err)
{
    pith_stop_reason reason = a->answer.reason;
    bool cut = reason == PITH_STOP_LENGTH || reason == PITH_STOP_FULL, equal = false;
    char *said = NULL;
    pith_status status = final_answer(q, a->answer.text, cut, &said, err);
    if (status == PITH_OK)
        status =
            (q->any_order ? eval_sets_equal : eval_answers_equal)(said, q->answer, &equal, err);
    if (status == PITH_OK) {
        *right += equal;
        r->answered += said[0] != '\0';
        /* A final answer is a part of a text of whole characters, cut at ASCII. */
        if (json_array_append_new(answers, json_string(said)) != 0 ||
            (texts != NULL &&
             !eval_keep_text(texts, a->prompt, a->answer.text, NULL, equal ? 1.0 : 0.0)))
            status = no_memory(err);
    }
    free(said);
    return status;
}

static pith_status add_row(struct questions_run *r, const struct question *q, int32_t right,
                           json_t *answers, json_t *texts, pith_error *err)
{
    int32_t n = r->params->n_draw;
    json_t *row =
        json_pack("{s:s, s:i, s:i, s:f, s:s, s:O}", "question", q->name, "n", (int)n, "right",
                  (int)right, "score", (double)right / n, "answer", q->answer, "answers", answers);
    if (row != NULL && texts != NULL && json_object_set(row, "texts", texts) != 0) {
        json_decref(row);
        row = NULL;
    }
    if (row == NULL || json_array_append_new(r->rows, row) != 0)
        return no_memory(err);
    r->passed += (double)right / n;
    return PITH_OK;
}

static pith_status judge_question(struct questions_run *r, int32_t index, pith_error *err)
{
    const struct question *q = &r->file.question[index];
    int32_t n_draw = r->params->n_draw, right = 0;
    json_t *answers = json_array(), *texts = r->setup->keep_text ? json_array() : NULL;
    pith_status status = PITH_OK;
    if (answers == NULL || (r->setup->keep_text && texts == NULL))
        status = no_memory(err);
    for (int32_t d = 0; d < n_draw && status == PITH_OK; d++)
        status = judge(r, q, &r->asked[index * n_draw + d], &right, answers, texts, err);
    if (status == PITH_OK)
        status = add_row(r, q, right, answers, texts, err);
    json_decref(answers);
    json_decref(texts);
    return status;
}

static pith_status open_file(struct questions_run *r, pith_error *err)
{
    const struct eval_questions_params *p = r->params;
    char *text = NULL;
    size_t len = 0;
    if (p->path == NULL)
        return eval_fail(err, PITH_INVALID, "questions: no file is given");
    if (p->n_draw < 1 || p->n_question < 0)
        return eval_fail(err, PITH_INVALID,
                         "questions: draws = %d must be positive, questions = %d not negative",
                         (int)p->n_draw, (int)p->n_question);
    if (p->n_parallel < 1)
        return eval_fail(err, PITH_INVALID, "questions: parallel = %d must be positive",
                         (int)p->n_parallel);
    pith_status status = eval_check_predict("questions", p->n_predict, 1, err);
    if (status == PITH_OK)
        status = eval_read_file(p->path, &text, &len, err);
    if (status == PITH_OK)
        status = eval_questions_parse(text, len, &r->file, err);
    free(text);
    r->n_question = r->file.n;
    if (p->n_question > 0 && p->n_question < r->n_question)
        r->n_question = p->n_question;
    return status;
}

static json_t *settings_of(const struct questions_run *r)
{
    const struct eval_questions_params *p = r->params;
    return json_pack("{s:o, s:i, s:i, s:i, s:i, s:f, s:f, s:i, s:f, s:o, s:I, s:b}", "file",
                     eval_json_text(p->path), "questions", (int)r->n_question, "draws",
                     (int)p->n_draw, "parallel", (int)p->n_parallel, "answer_tokens",
                     (int)p->n_predict, "temperature", (double)p->sample.temperature, "top_p",
                     (double)p->sample.top_p, "top_k", (int)p->sample.top_k, "min_p",
                     (double)p->sample.min_p, "instruction", eval_json_text(p->instruction), "seed",
                     (json_int_t)r->setup->seed, "chat", (int)r->setup->chat);
}

static void free_run(struct questions_run *r)
{
    for (int32_t i = 0; i < r->n_asked && r->asked != NULL; i++)
        eval_answer_free(&r->asked[i].answer);
    for (int32_t i = 0; i < r->n_question && r->prompts != NULL; i++)
        eval_prompt_free(&r->prompts[i]);
    free(r->asked);
    free(r->prompts);
    json_decref(r->rows);
    eval_questions_free(&r->file);
    eval_run_free(r->run);
}

pith_status eval_questions(const struct eval_setup *setup,
                           const struct eval_questions_params *params, json_t **result,
                           pith_error *err)
{
    struct questions_run r = {.setup = setup, .params = params, .rows = json_array()};
    int32_t longest = 0;
    pith_status status = r.rows != NULL ? open_file(&r, err) : no_memory(err);
    if (status == PITH_OK)
        status = make_prompts(&r, &longest, err);
    if (status == PITH_OK)
        status = eval_run_create_many(setup, longest + params->n_predict, params->n_parallel,
                                      &r.run, err);
    if (status == PITH_OK)
        status = eval_prompts_ask(r.run, setup, r.asked, r.n_asked, params->n_parallel, err);
    for (int32_t i = 0; i < r.n_question && status == PITH_OK; i++)
        status = judge_question(&r, i, err);
    if (status == PITH_OK)
        status = eval_scored(
            eval_result(r.run, "questions", r.n_question, settings_of(&r), json_incref(r.rows)),
            eval_wilson(r.passed, r.n_question), result, err);
    if (status == PITH_OK && json_object_set_new(json_object_get(*result, "summary"), "answered",
                                                 json_real((double)r.answered / r.n_asked)) != 0) {
        json_decref(*result);
        *result = NULL;
        status = no_memory(err);
    }
    free_run(&r);
    return status;
}
