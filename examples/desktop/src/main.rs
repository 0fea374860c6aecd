//! A chat application: its window and its model share one GPU device. README.md says how to run it.
//!
//! `engine` runs the model on a thread of its own, `app` is what the window knows and does, `view` is what it shows, and
//! `script` plays a user in tests.

mod app;
mod conversations;
mod engine;
mod frames;
mod markdown;
mod script;
mod settings;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use eframe::egui_wgpu::{WgpuSetup, WgpuSetupCreateNew};
use eframe::{egui, wgpu};

use script::Script;

const USAGE: &str = "usage: wgslm-desktop [--script FILE] [MODEL]";

struct Arguments {
    script: Option<Script>,
    /// A file, a folder, or a name on the hub.
    model: Option<String>,
}

fn arguments(arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let (mut script, mut model) = (None, None);
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--script" => {
                let path = PathBuf::from(arguments.next().ok_or(USAGE)?);
                let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                script = Some(Script::parse(&text).map_err(|problem| format!("{}: {problem}", path.display()))?);
            }
            _ if argument.starts_with('-') || model.is_some() => return Err(USAGE.to_owned()),
            _ => model = Some(argument),
        }
    }
    Ok(Arguments { script, model })
}

/// The window's device, with what the model can use: larger buffers, subgroups and f16.
fn device(adapter: &wgpu::Adapter) -> wgpu::DeviceDescriptor<'static> {
    let there = adapter.limits();
    let wanted = wgpu::Features::SUBGROUP | wgpu::Features::SHADER_F16;
    wgpu::DeviceDescriptor {
        label: Some("wgslm-desktop"),
        required_features: adapter.features() & wanted,
        required_limits: wgpu::Limits {
            max_texture_dimension_2d: there.max_texture_dimension_2d.min(8192),
            max_storage_buffer_binding_size: there.max_storage_buffer_binding_size,
            max_buffer_size: there.max_buffer_size,
            max_compute_workgroup_storage_size: there.max_compute_workgroup_storage_size,
            ..wgpu::Limits::default()
        },
        ..Default::default()
    }
}

fn main() -> ExitCode {
    let Arguments { script, model } = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    let mut setup =
        WgpuSetupCreateNew { device_descriptor: Arc::new(device), ..WgpuSetupCreateNew::without_display_handle() };
    // The kernels need what WebGPU has, which GL has not.
    setup.instance_descriptor.backends = wgpu::Backends::PRIMARY;
    setup.instance_descriptor.flags = wgpu::InstanceFlags::empty().with_env();
    let viewport = egui::ViewportBuilder::default()
        .with_title("wgslm")
        .with_app_id("wgslm-desktop")
        .with_inner_size([1000.0, 720.0])
        .with_min_inner_size([480.0, 360.0]);
    let mut options = eframe::NativeOptions { viewport, renderer: eframe::Renderer::Wgpu, ..Default::default() };
    options.wgpu_options.wgpu_setup = WgpuSetup::CreateNew(setup);
    let failed = Arc::new(std::sync::OnceLock::new());
    let ended = Arc::clone(&failed);
    let create: eframe::AppCreator<'_> = Box::new(move |context| {
        let app = app::App::new(context, script, model, ended)?;
        Ok(Box::new(app))
    });
    if let Err(error) = eframe::run_native("wgslm-desktop", options, create) {
        eprintln!("no window: {error}");
        eprintln!(
            "It needs a display, and a GPU with Vulkan, Metal or Direct3D 12. `wgslm doctor` shows which are there."
        );
        return ExitCode::FAILURE;
    }
    match failed.get() {
        Some(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}
