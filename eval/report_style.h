/* report_style.h - what makes the page of a report look and act as it does. */
#ifndef PI_EVAL_REPORT_STYLE_H
#define PI_EVAL_REPORT_STYLE_H

/* The style sheet: lines, ended by NULL. No character in it has a meaning in XML. */
extern const char *const report_style[];

/* The script: hides and shows a policy when its name is clicked. Lines, ended by NULL. */
extern const char *const report_script[];

#endif
