//! What the window shows.

use eframe::egui::{self, Color32, Key, Modifiers, RichText, Ui};

use crate::app::{App, ModelState};
use crate::engine::{Problem, Source};
use crate::frames::{PERIOD, percentile};
use crate::markdown;

/// Messages are not wider than this, in points.
const WIDTH: f32 = 760.0;

pub(crate) fn show(app: &mut App, ui: &mut Ui) {
    egui::Panel::top("model").show(ui, |ui| model(app, ui));
    egui::Panel::left("conversations").default_size(200.0).show(ui, |ui| conversations(app, ui));
    if app.shows_settings {
        egui::Panel::right("settings").default_size(230.0).show(ui, |ui| settings(app, ui));
    }
    egui::Panel::bottom("input").show(ui, |ui| input(app, ui));
    egui::CentralPanel::default().show(ui, |ui| {
        problems(app, ui);
        messages(app, ui);
    });
}

fn model(app: &mut App, ui: &mut Ui) {
    ui.add_space(4.0);
    ui.horizontal_wrapped(|ui| {
        let can_open = !app.opening();
        if ui.add_enabled(can_open, egui::Button::new("Open file…")).clicked() {
            app.pick(ui.ctx());
        }
        let field = egui::TextEdit::singleline(&mut app.name).hint_text("ORG/REPO on the hub").desired_width(170.0);
        let entered = ui.add_enabled(can_open, field).lost_focus() && ui.input(|input| input.key_pressed(Key::Enter));
        let named = can_open && !app.name.trim().is_empty();
        if (ui.add_enabled(named, egui::Button::new("Load")).clicked() || entered) && named {
            let name = app.name.trim().to_owned();
            app.open(Source::Name(name));
        }
        if ui.add_enabled(can_open, egui::Button::new("Tiny model")).clicked() {
            app.open(Source::Tiny);
        }
        ui.toggle_value(&mut app.shows_settings, "Settings");
        ui.toggle_value(&mut app.settings.frames, "Frames");
        ui.separator();
        match &app.model {
            ModelState::None => {
                ui.label("No model is open: choose one, or drop a file here.");
            }
            ModelState::Opening { what, part, .. } => {
                match part {
                    Some(part) => ui.add(egui::ProgressBar::new(*part).desired_width(220.0).text(what)),
                    None => ui.label(what),
                };
                if part.is_none() {
                    ui.spinner();
                }
                if ui.small_button("Stop").on_hover_text("Ends a download; what is here is kept").clicked() {
                    app.stop();
                }
            }
            ModelState::Open(info) => {
                ui.strong(&info.name);
                let kind = if info.chats { "" } else { ", continues texts" };
                ui.weak(format!("{} tokens of context{kind}", info.context)).on_hover_text(&info.device);
            }
        }
    });
    if app.settings.frames {
        graph(app, ui);
    }
    ui.add_space(4.0);
}

/// The last frames' times as bars, and the line that 30 a second stay below.
fn graph(app: &App, ui: &mut Ui) {
    let size = egui::vec2(ui.available_width(), 56.0);
    let (rect, _) = ui.allocate_exact_size(size, egui::Sense::hover());
    let visuals = ui.visuals();
    let painter = ui.painter_at(rect);
    painter.rect_filled(rect, 4.0, visuals.extreme_bg_color);
    let times = app.frames.recent();
    let (n, most) = (times.len(), PERIOD.as_secs_f32() * 3.0);
    let height = |seconds: f32| rect.height() * (seconds / most).min(1.0);
    for (i, time) in times.enumerate() {
        let seconds = time.as_secs_f32();
        let x = rect.right() - (n - i) as f32 * 2.0;
        let colour = match seconds / PERIOD.as_secs_f32() {
            ..1.25 => Color32::from_rgb(90, 170, 110),
            ..2.0 => Color32::from_rgb(210, 160, 60),
            _ => Color32::from_rgb(210, 80, 70),
        };
        painter.vline(x, rect.bottom() - height(seconds)..=rect.bottom(), egui::Stroke::new(1.5, colour));
    }
    let y = rect.bottom() - height(PERIOD.as_secs_f32());
    painter.hline(rect.x_range(), y, egui::Stroke::new(1.0, visuals.weak_text_color()));
    let ms = |part| percentile(app.frames.recent(), part).unwrap_or_default().as_secs_f64() * 1e3;
    let text = format!("{n} frames: p50 {:.0} ms, p99 {:.0} ms", ms(0.5), ms(0.99));
    let font = egui::FontId::proportional(11.0);
    painter.text(rect.left_top() + egui::vec2(6.0, 4.0), egui::Align2::LEFT_TOP, text, font, visuals.text_color());
}

fn conversations(app: &mut App, ui: &mut Ui) {
    ui.add_space(6.0);
    if ui.add(egui::Button::new("+ New conversation").min_size(egui::vec2(ui.available_width(), 26.0))).clicked() {
        app.new_conversation();
    }
    ui.add_space(4.0);
    let (mut selected, mut deleted) = (None, None);
    egui::ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
        for (n, conversation) in app.conversations.iter().enumerate() {
            let title = egui::Button::selectable(n == app.selected, conversation.title()).truncate();
            let row = ui.add(title.min_size(egui::vec2(ui.available_width(), 24.0)));
            row.context_menu(|ui| {
                if ui.button("Delete").clicked() {
                    deleted = Some(n);
                    ui.close();
                }
            });
            if row.clicked() {
                selected = Some(n);
            }
        }
    });
    if let Some(n) = selected {
        app.select(n);
    }
    if let Some(n) = deleted {
        app.delete(n);
    }
}

fn settings(app: &mut App, ui: &mut Ui) {
    ui.add_space(6.0);
    ui.heading("Settings");
    let settings = &mut app.settings;
    ui.label("System prompt");
    ui.add(egui::TextEdit::multiline(&mut settings.system).desired_rows(4).desired_width(f32::INFINITY));
    ui.add_space(6.0);
    ui.checkbox(&mut settings.recommended, "Sample as the model recommends");
    ui.add_enabled_ui(!settings.recommended, |ui| {
        ui.add(egui::Slider::new(&mut settings.temperature, 0.0..=2.0).text("Temperature"));
        ui.add(egui::Slider::new(&mut settings.top_p, 0.05..=1.0).text("Top-p"));
    });
    ui.horizontal(|ui| {
        ui.add(egui::DragValue::new(&mut settings.max_tokens).range(1..=1 << 20));
        ui.label("tokens at most");
    });
    ui.add_space(6.0);
    ui.weak(&app.adapter);
}

fn input(app: &mut App, ui: &mut Ui) {
    ui.add_space(6.0);
    let newline = egui::KeyboardShortcut::new(Modifiers::SHIFT, Key::Enter);
    let field = egui::TextEdit::multiline(&mut app.input)
        .hint_text("Message: Enter sends, Shift+Enter begins a line")
        .return_key(newline)
        .desired_rows(2)
        .desired_width(f32::INFINITY);
    let field = ui.add(field);
    let enter = ui.input(|input| input.key_pressed(Key::Enter) && !input.modifiers.shift);
    if field.has_focus() && enter {
        app.ask();
    }
    ui.horizontal(|ui| {
        if app.answering() {
            if ui.button("Stop").clicked() {
                app.stop();
            }
            ui.spinner();
        } else {
            let can_send = app.can_ask() && !app.input.trim().is_empty();
            if ui.add_enabled(can_send, egui::Button::new("Send")).clicked() {
                app.ask();
                field.request_focus();
            }
            let can_repeat = app.can_ask() && app.conversation().can_regenerate();
            if ui.add_enabled(can_repeat, egui::Button::new("Regenerate")).clicked() {
                app.regenerate();
            }
        }
        if let Some(speed) = app.current_speed() {
            ui.weak(format!("{speed:.1} tokens/s"));
        }
    });
    ui.add_space(4.0);
}

fn problems(app: &mut App, ui: &mut Ui) {
    let mut closed = None;
    for (n, Problem { what, advice }) in app.problems.iter().enumerate() {
        let frame = egui::Frame::new().fill(ui.visuals().error_fg_color.gamma_multiply(0.15)).inner_margin(8);
        frame.corner_radius(6).show(ui, |ui| {
            ui.horizontal(|ui| {
                if ui.small_button("×").on_hover_text("Close").clicked() {
                    closed = Some(n);
                }
                ui.vertical(|ui| {
                    ui.add(egui::Label::new(RichText::new(what).color(ui.visuals().error_fg_color)).wrap());
                    ui.add(egui::Label::new(*advice).wrap());
                });
            });
        });
        ui.add_space(4.0);
    }
    if let Some(n) = closed {
        app.problems.remove(n);
    }
}

fn messages(app: &mut App, ui: &mut Ui) {
    let scroll = egui::ScrollArea::vertical().id_salt(&app.conversation().id).stick_to_bottom(true).auto_shrink(false);
    scroll.show(ui, |ui| {
        let margin = ((ui.available_width() - WIDTH) / 2.0).max(0.0);
        ui.horizontal_top(|ui| {
            ui.add_space(margin);
            ui.vertical(|ui| {
                // Without the space of the scroll bar.
                ui.set_max_width(WIDTH.min(ui.available_width() - 12.0));
                column(app, ui);
            });
        });
    });
}

fn column(app: &mut App, ui: &mut Ui) {
    let messages = &app.conversations[app.selected].messages;
    app.parsed.truncate(messages.len());
    for (n, message) in messages.iter().enumerate() {
        // A text only grows, and is read again when it has.
        if app.parsed.get(n).is_none_or(|(length, _)| *length != message.content.len()) {
            app.parsed.truncate(n);
            app.parsed.push((message.content.len(), markdown::parse(&message.content)));
        }
        ui.push_id(n, |ui| match &*message.role {
            "user" => user(ui, &message.content),
            _ => markdown::show(ui, &app.parsed[n].1),
        });
        ui.add_space(12.0);
    }
    if app.answering_here() {
        ui.weak(if app.tokens() == 0 { "Reading…" } else { "Writing…" });
    } else if messages.is_empty() {
        ui.add_space(40.0);
        ui.vertical_centered(|ui| ui.weak("Ask something, or drop a model's file here."));
    }
}

/// What somebody asked, as it was entered.
fn user(ui: &mut Ui, text: &str) {
    let frame = egui::Frame::new().fill(ui.visuals().faint_bg_color).inner_margin(8).corner_radius(6);
    frame.stroke(ui.visuals().widgets.noninteractive.bg_stroke).show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.add(egui::Label::new(RichText::new(text).strong()).wrap());
    });
}
