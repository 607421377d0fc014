/*
 * longbench_sets.c - the data sets of LongBench: prompts and lengths of answers as its authors have
 * them (config/dataset2prompt.json, dataset2maxlen.json, pred.py), letter by letter.
 */
#include "longbench.h"

#include <string.h>

static const struct longbench_set sets[] = {
    {"narrativeqa", LONGBENCH_QA_F1, 128,
     .prompt = "You are given a story, which can be either a novel or a movie script, and "
               "a question. Answer the question asconcisely as you can, using a single "
               "phrase if possible. Do not provide any explanation.\n\nStory: {context}"
               "\n\nNow, answer the question based on the story asconcisely as you can, "
               "using a single phrase if possible. Do not provide any explanation.\n\n"
               "Question: {input}\n\nAnswer:"},
    {"qasper", LONGBENCH_QA_F1, 128,
     .prompt = "You are given a scientific article and a question. Answer the question as "
               "concisely as you can, using a single phrase or sentence if possible. If "
               "the question cannot be answered based on the information in the article, "
               "write \"unanswerable\". If the question is a yes/no question, answer "
               "\"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\n"
               "Article: {context}\n\n Answer the question based on the above article as "
               "concisely as you can, using a single phrase or sentence if possible. If "
               "the question cannot be answered based on the information in the article, "
               "write \"unanswerable\". If the question is a yes/no question, answer "
               "\"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\n"
               "Question: {input}\n\nAnswer:"},
    {"multifieldqa_en", LONGBENCH_QA_F1, 64,
     .prompt = "Read the following text and answer briefly.\n\n{context}\n\nNow, answer "
               "the following question based on the above text, only give me the answer "
               "and do not output any other words.\n\nQuestion: {input}\nAnswer:"},
    {"multifieldqa_zh", LONGBENCH_NONE, 64, .prompt = ""},
    {"hotpotqa", LONGBENCH_QA_F1, 32,
     .prompt = "Answer the question based on the given passages. Only give me the answer "
               "and do not output any other words.\n\nThe following are given passages.\n"
               "{context}\n\nAnswer the question based on the given passages. Only give "
               "me the answer and do not output any other words.\n\nQuestion: {input}\n"
               "Answer:"},
    {"2wikimqa", LONGBENCH_QA_F1, 32,
     .prompt = "Answer the question based on the given passages. Only give me the answer "
               "and do not output any other words.\n\nThe following are given passages.\n"
               "{context}\n\nAnswer the question based on the given passages. Only give "
               "me the answer and do not output any other words.\n\nQuestion: {input}\n"
               "Answer:"},
    {"musique", LONGBENCH_QA_F1, 32,
     .prompt = "Answer the question based on the given passages. Only give me the answer "
               "and do not output any other words.\n\nThe following are given passages.\n"
               "{context}\n\nAnswer the question based on the given passages. Only give "
               "me the answer and do not output any other words.\n\nQuestion: {input}\n"
               "Answer:"},
    {"dureader", LONGBENCH_NONE, 128, .prompt = ""},
    {"gov_report", LONGBENCH_ROUGE, 512,
     .prompt = "You are given a report by a government agency. Write a one-page summary "
               "of the report.\n\nReport:\n{context}\n\nNow, write a one-page summary of "
               "the report.\n\nSummary:"},
    {"qmsum", LONGBENCH_ROUGE, 512,
     .prompt = "You are given a meeting transcript and a query containing a question or "
               "instruction. Answer the query in one or more sentences.\n\nTranscript:\n"
               "{context}\n\nNow, answer the query based on the above meeting transcript "
               "in one or more sentences.\n\nQuery: {input}\nAnswer:"},
    {"multi_news", LONGBENCH_ROUGE, 512,
     .prompt = "You are given several news passages. Write a one-page summary of all "
               "news. \n\nNews:\n{context}\n\nNow, write a one-page summary of all the "
               "news.\n\nSummary:"},
    {"vcsum", LONGBENCH_NONE, 512, .prompt = ""},
    {"trec", LONGBENCH_CLASS, 64, .plain = true, .first_line = true,
     .prompt = "Please determine the type of the question below. Here are some examples "
               "of questions.\n\n{context}\n{input}"},
    {"triviaqa", LONGBENCH_QA_F1, 32, .plain = true, .first_line = true,
     .prompt = "Answer the question based on the given passage. Only give me the answer "
               "and do not output any other words. The following are some examples.\n\n"
               "{context}\n\n{input}"},
    {"samsum", LONGBENCH_ROUGE, 128, .plain = true, .first_line = true, .one_line = true,
     .prompt = "Summarize the dialogue into a few short sentences. The following are some "
               "examples.\n\n{context}\n\n{input}"},
    {"lsht", LONGBENCH_CLASS, 64, .plain = true, .first_line = true,
     .prompt = "请判断给定新闻的类别，下面是一些例子。\n\n{context}\n{input}"},
    {"passage_count", LONGBENCH_COUNT, 32,
     .prompt = "There are some paragraphs below sourced from Wikipedia. Some of them may "
               "be duplicates. Please carefully read these paragraphs and determine how "
               "many unique paragraphs there are after removing duplicates. In other "
               "words, how many non-repeating paragraphs are there in total?\n\n{context}"
               "\n\nPlease enter the final count of unique paragraphs after removing "
               "duplicates. The output format should only contain the number, such as 1, "
               "2, 3, and so on.\n\nThe final answer is: "},
    {"passage_retrieval_en", LONGBENCH_RETRIEVAL, 32,
     .prompt = "Here are 30 paragraphs from Wikipedia, along with an abstract. Please "
               "determine which paragraph the abstract is from.\n\n{context}\n\nThe "
               "following is an abstract.\n\n{input}\n\nPlease enter the number of the "
               "paragraph that the abstract is from. The answer format must be like "
               "\"Paragraph 1\", \"Paragraph 2\", etc.\n\nThe answer is: "},
    {"passage_retrieval_zh", LONGBENCH_RETRIEVAL_ZH, 32,
     .prompt =
         "以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n{context}"
         "\n\n下面是一个摘要\n\n{input}"
         "\n\n请输入摘要所属段落的编号。答案格式必须是\"段落1\"，\"段落2\"等格式\n\n答案是："},
    {"lcc", LONGBENCH_CODE, 64, .plain = true,
     .prompt = "Please complete the code given below. \n{context}Next line of code:\n"},
    {"repobench-p", LONGBENCH_CODE, 64, .plain = true,
     .prompt = "Please complete the code given below. \n{context}{input}Next line of code:"
               "\n"},
};

const struct longbench_set *eval_longbench_find(const char *name)
{
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        if (strcmp(sets[i].name, name) == 0)
            return &sets[i];
    return NULL;
}

void eval_longbench_prompt(const struct longbench_set *set, const char *context, const char *input,
                           struct eval_text *out)
{
    static const char c[] = "{context}", i[] = "{input}";
    for (const char *at = set->prompt; *at != '\0';) {
        size_t n = strcspn(at, "{");
        eval_text_add_n(out, at, n);
        at += n;
        if (strncmp(at, c, sizeof(c) - 1) == 0) {
            eval_text_add(out, context);
            at += sizeof(c) - 1;
        } else if (strncmp(at, i, sizeof(i) - 1) == 0) {
            eval_text_add(out, input);
            at += sizeof(i) - 1;
        } else if (*at != '\0') {
            eval_text_add_n(out, at++, 1);
        }
    }
}
