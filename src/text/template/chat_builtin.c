/*
 * chat_builtin.c - templates that come along, for files that carry none or whose user names one.
 * They follow the ones that the models' authors published, for messages without tools. BOS is left
 * out where a template starts with it, because the tokenizer adds it where the model wants one.
 */
#include "text/template/chat.h"

/* Loops over the messages; behind each role comes its text. */
#define EACH "{% for m in messages %}"
#define SYSTEM "{% if m.role == 'system' %}"
#define USER "{% elif m.role == 'user' %}"
#define ASSISTANT "{% else %}"
#define END "{% endif %}{% endfor %}"
#define GENERATE(text) "{% if add_generation_prompt %}{{ '" text "' }}{% endif %}"
#define NO_SYSTEM(text)                                                                            \
    "{% if not messages or messages[0].role != 'system' %}{{ '" text "' }}{% endif %}"

/* A system message that is part of a user's: only the first may be one. */
#define FIRST_SYSTEM                                                                               \
    SYSTEM "{% if loop.index0 > 0 %}{{ raise_exception('messages[' ~ loop.index0 ~ '].role: in "   \
           "this template only the first may be system') }}{% endif %}"
#define IF_FIRST_USER "{% if loop.index0 == 1 and messages[0].role == 'system' %}"
#define IF_LAST_USER "{% if loop.last and loop.index0 > 0 and messages[0].role == 'system' %}"
#define JOINED "{{ messages[0].content ~ '\\n\\n' }}{% endif %}"

#define IM_START(role) "<|im_start|>" role "\\n"
#define IM_END "<|im_end|>\\n"
#define CHATML_TURNS                                                                               \
    EACH "{{ '" IM_START("' ~ m.role ~ '") "' ~ m.content ~ '" IM_END "' }}{% endfor %}"
#define CHATML CHATML_TURNS GENERATE(IM_START("assistant"))
#define CHATML_WITH(system) NO_SYSTEM(IM_START("system") system IM_END) CHATML

#define AFTER_THOUGHTS "m.content.split('</think>')[-1]"

/* Qwen3: thoughts are shown behind the last question only, by the last message in any case. A
   tool's answer is no question, though it comes as the user's message. */
#define QWEN3                                                                                      \
    "{% set ns = namespace(last=messages|length) %}" EACH                                          \
    "{% if m.role == 'user' and not (m.content.startswith('<tool_response>') and "                 \
    "m.content.endswith('</tool_response>')) %}{% set ns.last = loop.index0 %}" END EACH           \
    "{% set c = m.content %}{% set t = '' %}{{ '" IM_START(                                        \
        "' ~ m.role ~ '") "' }}"                                                                   \
                          "{% if m.role == 'assistant' %}{% if '</think>' in c %}"                 \
                          "{% set t = c.split('</think>')[0].split('<think>')[-1].strip('\\n') %}" \
                          "{% set c = " AFTER_THOUGHTS ".lstrip('\\n') %}{% endif %}"              \
                          "{% if loop.index0 > ns.last and (loop.last or t) %}"                    \
                          "{{ '<think>\\n' ~ t ~ '\\n</think>\\n\\n' }}{% set c = "                \
                          "c.lstrip('\\n') %}{% endif %}"                                          \
                          "{% endif %}{{ c ~ '" IM_END "' }}{% endfor %}"

#define LLAMA3_HEAD(role) "<|start_header_id|>" role "<|end_header_id|>\\n\\n"
#define LLAMA3_TURNS(head)                                                                         \
    EACH "{{ '" LLAMA3_HEAD("' ~ m.role ~ '") "' }}" head "{{ m.content.strip() ~ '<|eot_id|>' }}" \
                                              "{% endfor %}" GENERATE(LLAMA3_HEAD("assistant"))
/* The date that the template falls back to: the same prompt today and tomorrow. */
#define LLAMA31_DATE "Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n"

/* U+FF5C and U+2581 stand in the names of DeepSeek's tokens. */
#define DEEPSEEK_TOKEN(name) "<\xef\xbd\x9c" name "\xef\xbd\x9c>"
#define DEEPSEEK_USER DEEPSEEK_TOKEN("User")
#define DEEPSEEK_ASSISTANT DEEPSEEK_TOKEN("Assistant")
#define DEEPSEEK_END DEEPSEEK_TOKEN("end\xe2\x96\x81of\xe2\x96\x81sentence")
#define DEEPSEEK(answer, open)                                                                     \
    EACH SYSTEM "{{ m.content }}" USER "{{ '" DEEPSEEK_USER "' ~ m.content }}" ASSISTANT           \
                "{{ '" DEEPSEEK_ASSISTANT "' ~ " answer " ~ '" DEEPSEEK_END "' }}" END             \
                GENERATE(DEEPSEEK_ASSISTANT open)

#define MISTRAL(open, close, answer)                                                               \
    EACH FIRST_SYSTEM USER "{{ '" open "' }}" IF_FIRST_USER JOINED "{{ m.content ~ '" close        \
                           "' }}" ASSISTANT "{{ " answer " ~ '</s>' }}" END
#define MISTRAL3(open, close, answer)                                                              \
    EACH FIRST_SYSTEM USER "{{ '" open "' }}" IF_LAST_USER JOINED "{{ m.content ~ '" close         \
                           "' }}" ASSISTANT "{{ " answer " ~ '</s>' }}" END
#define MISTRAL7(gap)                                                                              \
    EACH SYSTEM "{{ '[SYSTEM_PROMPT]" gap "' ~ m.content ~ '[/SYSTEM_PROMPT]' }}" USER             \
                "{{ '[INST]" gap "' ~ m.content ~ '[/INST]' }}" ASSISTANT "{{ '" gap               \
                "' ~ m.content ~ '</s>' }}" END

static const struct {
    const char *name, *text;
} builtins[] = {
    {"phi4", EACH "{{ '<|im_start|>' ~ m.role ~ '<|im_sep|>' ~ m.content ~ '<|im_end|>' }}"
                  "{% endfor %}" GENERATE("<|im_start|>assistant<|im_sep|>")},
    {"qwen3", QWEN3 GENERATE(IM_START(
                  "assistant")) "{% if add_generation_prompt and enable_thinking "
                                "is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"},
    {"qwen3-thinking", QWEN3 GENERATE(IM_START("assistant") "<think>\\n")},
    {"qwq",
     EACH "{{ '" IM_START("' ~ m.role ~ '") "' }}{% if m.role == 'assistant' and not "
                                            "loop.last %}{{ " AFTER_THOUGHTS
                                            ".lstrip('\\n') }}{% else %}{{ m.content }}"
                                            "{% endif %}{{ '" IM_END "' }}{% endfor %}" GENERATE(
                                                IM_START("assistant") "<think>\\n")},
    {"qwen2.5",
     CHATML_WITH("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")},
    {"qwen2", CHATML_WITH("You are a helpful assistant.")},
    {"smollm2",
     CHATML_WITH("You are a helpful AI assistant named SmolLM, trained by Hugging Face")},
    {"chatml", CHATML},
    {"llama3.1", NO_SYSTEM(LLAMA3_HEAD("system") LLAMA31_DATE "<|eot_id|>") LLAMA3_TURNS(
                     "{% if m.role == 'system' %}{{ '" LLAMA31_DATE "' }}{% endif %}")},
    {"llama3", LLAMA3_TURNS("")},
    {"llama2", EACH FIRST_SYSTEM USER
     "{{ '<s>[INST] ' if loop.index0 > 1 else '[INST] ' }}" IF_FIRST_USER
     "{{ '<<SYS>>\\n' ~ messages[0].content ~ '\\n<</SYS>>\\n\\n' ~ m.content.rstrip() }}"
     "{% else %}{{ m.content.strip() }}{% endif %}{{ ' [/INST]' }}" ASSISTANT
     "{{ ' ' ~ m.content.strip() ~ ' </s>' }}" END},
    {"mistral-v7-tekken", MISTRAL7("")},
    {"mistral-v7", MISTRAL7(" ")},
    {"mistral-v3-tekken", MISTRAL3("[INST]", "[/INST]", "m.content")},
    {"mistral-v3", MISTRAL3("[INST] ", "[/INST]", "' ' ~ m.content.strip()")},
    {"mistral-v1", MISTRAL(" [INST] ", " [/INST]", "' ' ~ m.content")},
    {"mistral", MISTRAL("[INST] ", " [/INST]", "m.content")},
    {"gemma", EACH FIRST_SYSTEM USER
     "{{ '<start_of_turn>user\\n' }}" IF_FIRST_USER JOINED
     "{{ m.content.strip() ~ '<end_of_turn>\\n' }}" ASSISTANT
     "{{ '<start_of_turn>model\\n' ~ m.content.strip() ~ '<end_of_turn>\\n' }}" END GENERATE(
         "<start_of_turn>model\\n")},
    {"phi3", EACH "{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ '<|end|>\\n' }}{% endfor %}"
                  "{{ '<|assistant|>\\n' if add_generation_prompt else '<|endoftext|>' }}"},
    {"zephyr", EACH "{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ '</s>\\n' }}{% endfor %}" GENERATE(
                   "<|assistant|>\\n")},
    {"deepseek-r1", DEEPSEEK(AFTER_THOUGHTS, "<think>\\n")},
    /* The first text of R1, which leaves it to the model to start thinking. */
    {"deepseek-r1-2501", DEEPSEEK(AFTER_THOUGHTS, "")},
    {"deepseek", DEEPSEEK("m.content", "")},
    {"deepseek-v2",
     EACH SYSTEM "{{ m.content ~ '\\n\\n' }}" USER "{{ 'User: ' ~ m.content ~ '\\n\\n' }}" ASSISTANT
                 "{{ 'Assistant: ' ~ m.content ~ '" DEEPSEEK_END "' }}" END GENERATE("Assistant:")},
};

const char *pi_chat_name(int32_t i)
{
    return i >= 0 && i < (int32_t)PI_LEN(builtins) ? builtins[i].name : NULL;
}

const char *pi_chat_text(const char *name)
{
    for (size_t i = 0; name != NULL && i < PI_LEN(builtins); i++)
        if (strcmp(builtins[i].name, name) == 0)
            return builtins[i].text;
    return NULL;
}
