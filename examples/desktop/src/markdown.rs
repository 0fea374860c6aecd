//! Markdown as models write it: paragraphs, headings, lists, quotes, rules, code, bold and italics. All else is text.
//!
//! An answer is shown while it grows, so whatever is not closed yet ends with the text.

use eframe::egui::text::{LayoutJob, TextFormat};
use eframe::egui::{self, Color32, FontId, RichText, TextStyle, Ui};

/// A part of a text with one look.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Span {
    pub(crate) text: String,
    pub(crate) bold: bool,
    pub(crate) italic: bool,
    pub(crate) code: bool,
}

/// What stands below one another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Block {
    Paragraph(Vec<Span>),
    /// From 1, the largest, to 6.
    Heading(usize, Vec<Span>),
    /// Its depth from 0, and its number or bullet.
    Item(usize, String, Vec<Span>),
    Quote(Vec<Span>),
    Code {
        language: String,
        text: String,
    },
    Rule,
}

/// Reads a text.
pub(crate) fn parse(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    // Lines of a block that goes on, and how it began.
    let mut open: Option<(Block, String)> = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        let indent = line.len() - line.trim_start().len();
        if let Some((fence, language)) = fence(trimmed) {
            finish(&mut blocks, open.take());
            let code = lines.by_ref().take_while(|line| !closes(line, &fence));
            // Not deeper than the fence.
            let code: Vec<&str> =
                code.map(|line| line.get(indent.min(leading_spaces(line))..).unwrap_or(line)).collect();
            blocks.push(Block::Code { language, text: code.join("\n") });
        } else if trimmed.is_empty() {
            finish(&mut blocks, open.take());
        } else if let Some((level, rest)) = heading(trimmed) {
            finish(&mut blocks, open.take());
            blocks.push(Block::Heading(level, spans(rest)));
        } else if is_rule(trimmed) {
            finish(&mut blocks, open.take());
            blocks.push(Block::Rule);
        } else if let Some((marker, rest)) = item(trimmed) {
            finish(&mut blocks, open.take());
            open = Some((Block::Item(indent / 2, marker, Vec::new()), rest.to_owned()));
        } else if let Some(rest) = trimmed.strip_prefix('>') {
            if !matches!(open, Some((Block::Quote(_), _))) {
                finish(&mut blocks, open.take());
            }
            add(&mut open, Block::Quote(Vec::new()), rest.trim());
        } else {
            add(&mut open, Block::Paragraph(Vec::new()), trimmed);
        }
    }
    finish(&mut blocks, open);
    blocks
}

/// Adds a line to what is open, or opens it.
fn add(open: &mut Option<(Block, String)>, block: Block, line: &str) {
    let (_, text) = open.get_or_insert_with(|| (block, String::new()));
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

fn finish(blocks: &mut Vec<Block>, open: Option<(Block, String)>) {
    blocks.extend(open.map(|(block, text)| match block {
        Block::Item(depth, marker, _) => Block::Item(depth, marker, spans(&text)),
        Block::Quote(_) => Block::Quote(spans(&text)),
        _ => Block::Paragraph(spans(&text)),
    }));
}

fn leading_spaces(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// The fence that begins a block of code, and its language.
fn fence(line: &str) -> Option<(String, String)> {
    let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let length = line.chars().take_while(|c| *c == mark).count();
    let language = line[length..].trim();
    // Code within a line may begin with three backticks, too.
    (length >= 3 && !language.contains('`')).then(|| (line[..length].to_owned(), language.to_owned()))
}

fn closes(line: &str, fence: &str) -> bool {
    let line = line.trim();
    line.starts_with(fence) && line.trim_start_matches(&fence[..1]).is_empty()
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    let rest = line[level..].strip_prefix(' ')?;
    (1..=6).contains(&level).then(|| (level, rest.trim().trim_end_matches('#').trim_end()))
}

fn is_rule(line: &str) -> bool {
    let mut marks = line.chars().filter(|c| !c.is_whitespace());
    let first = marks.next().filter(|mark| matches!(mark, '-' | '*' | '_'));
    first.is_some_and(|first| marks.clone().count() >= 2 && marks.all(|mark| mark == first))
}

fn item(line: &str) -> Option<(String, &str)> {
    if let Some(rest) = ["- ", "* ", "+ "].iter().find_map(|bullet| line.strip_prefix(bullet)) {
        return Some(("•".to_owned(), rest.trim_start()));
    }
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let rest = line[digits..].strip_prefix(['.', ')'])?.strip_prefix(' ')?;
    (1..=9).contains(&digits).then(|| (format!("{}.", &line[..digits]), rest.trim_start()))
}

/// The looks within a text.
fn spans(text: &str) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut now = Span::default();
    let mut rest = text;
    let mut before = None;
    while let Some(c) = rest.chars().next() {
        let run = rest.chars().take_while(|other| *other == c).count();
        let after = rest[run * c.len_utf8()..].chars().next();
        let mut used = c.len_utf8();
        match c {
            '\\' if rest[1..].starts_with(|next: char| next.is_ascii_punctuation()) => {
                now.text.push_str(&rest[1..2]);
                used = 2;
            }
            '`' => {
                let marks = &rest[..run];
                let inner = &rest[run..];
                let end = inner.find(marks).unwrap_or(inner.len());
                push(&mut spans, &mut now);
                let text =
                    inner[..end].strip_prefix(' ').and_then(|text| text.strip_suffix(' ')).unwrap_or(&inner[..end]);
                spans.push(Span { text: text.to_owned(), code: true, ..now.clone() });
                used = (run + end + run).min(rest.len());
            }
            '*' | '_' if run <= 3 => {
                let spaced = |c: Option<char>| c.is_none_or(char::is_whitespace);
                let word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
                let is_on = if run == 1 { now.italic } else { now.bold };
                // snake_case is a word, and 2 * 3 is a product.
                let turns =
                    if is_on { !spaced(before) } else { !spaced(after) } && !(c == '_' && word(before) && word(after));
                used = run;
                if turns {
                    push(&mut spans, &mut now);
                    now.italic ^= run != 2;
                    now.bold ^= run != 1;
                } else {
                    now.text.push_str(&rest[..run]);
                }
            }
            '*' | '_' => {
                now.text.push_str(&rest[..run]);
                used = run;
            }
            _ => now.text.push(c),
        }
        before = rest[..used].chars().next_back();
        rest = &rest[used..];
    }
    push(&mut spans, &mut now);
    spans
}

/// Ends a span; the next has the same look.
fn push(spans: &mut Vec<Span>, now: &mut Span) {
    if !now.text.is_empty() {
        let next = Span { text: String::new(), ..now.clone() };
        spans.push(std::mem::replace(now, next));
    }
}

// --- on the screen --------------------------------------------------------------------------------------------------

/// Shows what was read.
pub(crate) fn show(ui: &mut Ui, blocks: &[Block]) {
    ui.spacing_mut().item_spacing.y = 8.0;
    for (n, block) in blocks.iter().enumerate() {
        match block {
            Block::Paragraph(spans) => label(ui, spans, 1.0, false),
            Block::Heading(level, spans) => label(ui, spans, 1.6 - 0.12 * *level as f32, true),
            Block::Item(depth, marker, spans) => {
                ui.horizontal_top(|ui| {
                    ui.add_space(8.0 + 16.0 * (*depth).min(8) as f32);
                    ui.label(marker);
                    ui.vertical(|ui| label(ui, spans, 1.0, false));
                });
            }
            Block::Quote(spans) => {
                let shown = ui.horizontal_top(|ui| {
                    ui.add_space(12.0);
                    ui.vertical(|ui| label(ui, spans, 1.0, false));
                });
                let (rect, stroke) = (shown.response.rect, egui::Stroke::new(3.0, ui.visuals().weak_text_color()));
                ui.painter().vline(rect.left() + 2.0, rect.y_range(), stroke);
            }
            Block::Code { language, text } => code(ui, n, language, text),
            Block::Rule => {
                ui.separator();
            }
        }
    }
}

fn label(ui: &mut Ui, spans: &[Span], scale: f32, heading: bool) {
    let size = TextStyle::Body.resolve(ui.style()).size * scale;
    let visuals = ui.visuals();
    let mut job = LayoutJob::default();
    for span in spans {
        let family = if span.code { egui::FontFamily::Monospace } else { egui::FontFamily::Proportional };
        let format = TextFormat {
            font_id: FontId::new(if span.code { size * 0.93 } else { size }, family),
            // The font that is compiled in has one weight: bold is a brighter colour.
            color: if span.bold || heading { visuals.strong_text_color() } else { visuals.text_color() },
            italics: span.italic,
            background: if span.code { visuals.code_bg_color } else { Color32::TRANSPARENT },
            ..TextFormat::default()
        };
        job.append(&span.text, 0.0, format);
    }
    ui.add(egui::Label::new(job).wrap());
}

fn code(ui: &mut Ui, n: usize, language: &str, text: &str) {
    let frame = egui::Frame::new().fill(ui.visuals().extreme_bg_color).inner_margin(8).corner_radius(6);
    frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.horizontal(|ui| {
            ui.label(RichText::new(language).weak().small());
            ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                if ui.small_button("Copy").clicked() {
                    ui.copy_text(text.to_owned());
                }
            });
        });
        egui::ScrollArea::horizontal().id_salt(("code", n)).show(ui, |ui| {
            ui.add(egui::Label::new(RichText::new(text).monospace()).extend());
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> Span {
        Span { text: text.into(), ..Span::default() }
    }

    /// One line for each block, with looks as tags.
    fn outline(text: &str) -> Vec<String> {
        let spans = |spans: &[Span]| {
            let tag = |span: &Span| {
                let tags = [(span.bold, "b"), (span.italic, "i"), (span.code, "c")];
                let tags: String = tags.iter().filter(|tag| tag.0).map(|tag| tag.1).collect();
                if tags.is_empty() { span.text.clone() } else { format!("<{tags}:{}>", span.text) }
            };
            spans.iter().map(tag).collect::<String>()
        };
        let line = |block: &Block| match block {
            Block::Paragraph(text) => format!("p {}", spans(text)),
            Block::Heading(level, text) => format!("h{level} {}", spans(text)),
            Block::Item(depth, marker, text) => format!("{depth}{marker} {}", spans(text)),
            Block::Quote(text) => format!("q {}", spans(text)),
            Block::Code { language, text } => format!("code {language}|{text}"),
            Block::Rule => "rule".to_owned(),
        };
        parse(text).iter().map(line).collect()
    }

    #[test]
    fn blocks() {
        let text = "# Title #\nOne\ntwo\n\n- a\n  1. b\n  more\n* c\n> q1\n> q2\n***\n####### seven\n#no\n12) d";
        let expected = [
            "h1 Title",
            "p One\ntwo",
            "0• a",
            "11. b\nmore",
            "0• c",
            "q q1\nq2",
            "rule",
            "p ####### seven\n#no",
            "012. d",
        ];
        assert_eq!(outline(text), expected);
        assert_eq!(outline(""), [""; 0]);
        assert_eq!(outline("3.14 is no item"), ["p 3.14 is no item"]);
    }

    #[test]
    fn code_blocks() {
        assert_eq!(outline("```rust\nfn f() {}\n\n  # x\n```\nafter"), ["code rust|fn f() {}\n\n  # x", "p after"]);
        // Not closed yet.
        assert_eq!(outline("a\n```\nb\n"), ["p a", "code |b"]);
        assert_eq!(outline("````\n```\n````"), ["code |```"]);
        assert_eq!(outline("- x\n  ~~~py\n  y\n    z\n  ~~~"), ["0• x", "code py|y\n  z"]);
        assert_eq!(outline("```one line```"), ["p <c:one line>"]);
    }

    #[test]
    fn looks_within_a_line() {
        assert_eq!(outline("a **b** *c* ***d*** `e*f`"), ["p a <b:b> <i:c> <bi:d> <c:e*f>"]);
        assert_eq!(outline("snake_case_name and 2 * 3 * 4"), ["p snake_case_name and 2 * 3 * 4"]);
        assert_eq!(outline("__a__ _b_ **c *d* e**"), ["p <b:a> <i:b> <b:c ><bi:d><b: e>"]);
        assert_eq!(outline(r"\*no\* \é"), [r"p *no* \é"]);
        assert_eq!(outline("``a`b`` and `open"), ["p <c:a`b> and <c:open>"]);
        assert_eq!(spans("x"), [plain("x")]);
    }

    /// An answer is shown after each token: no beginning of a text may be too much for the reader.
    #[test]
    fn any_beginning_can_be_read() {
        let text =
            "# é\n- *a*\n  1. `ü` **\u{1f600}**\n```ß\n \u{a0}x\n```\n> _q_\\\n***\n~~~\n\u{3000}y\n~~~~\\*`` ` ``****";
        for (end, _) in text.char_indices() {
            parse(&text[..end]);
            parse(&text[end..]);
        }
    }
}
