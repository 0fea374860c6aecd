//! The kernel tests in a browser: the same cases against the same oracle as natively, on the adapter that the browser has.
#![cfg(target_arch = "wasm32")]
#![allow(
    clippy::arc_with_non_send_sync,
    reason = "one thread, one code: natively the same values are shared by threads"
)]

use serde_json::json;
use wasm_bindgen::prelude::*;
use wgslm::gpu::{Choice, Device, Kernel};
use wgslm_test::cases::{self, Case};
use wgslm_test::{int8, modules};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(message: &str);
}

/// A panic ends the instance with the word "unreachable"; its message goes to the console.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| console_error(&panic.to_string())));
}

/// The cases, and a device to run them on.
#[wasm_bindgen]
pub struct Kernels {
    device: Device,
    cases: Vec<Case>,
}

#[wasm_bindgen]
impl Kernels {
    pub async fn open() -> Result<Kernels, String> {
        report_panics();
        let choice = Choice { software: true, ..Choice::default() };
        let device = Device::open(&choice).await.map_err(|e| e.to_string())?;
        Ok(Self { device, cases: cases::for_browsers() })
    }

    pub fn count(&self) -> usize {
        self.cases.len()
    }

    /// The names of all modules that a browser can be given, as a JSON list.
    pub fn modules() -> String {
        let modules = modules::all();
        let natively = |m: &&Kernel| modules::uses_subgroups(m) || modules::uses_f16(m);
        json!(modules.iter().filter(|m| !natively(m)).map(modules::name).collect::<Vec<_>>()).to_string()
    }

    /// Runs a case: `{name, distance, bound, modules}`. A distance that is NaN is null.
    pub async fn run(&self, index: usize) -> String {
        let case = &self.cases[index];
        let (distance, modules) = case.distance(&self.device).await;
        self.device.check().expect("the device took everything");
        json!({ "name": case.name, "distance": distance, "bound": case.bound, "modules": modules }).to_string()
    }

    /// Compares the processor's products of integers in all formats, with vectors and without; how many.
    pub fn products() -> usize {
        report_panics();
        int8::forms_agree_on_any_bytes();
        int8::products_are_those_of_the_rounded_activations()
    }

    /// The cases that are whole models, on the processor: a list of `{name, distance, bound}`.
    pub async fn on_processor() -> String {
        let mut seen = Vec::new();
        for case in cases::for_processors() {
            if let Some((distance, bound)) = case.on_processor().await {
                seen.push(json!({ "name": case.name, "distance": distance, "bound": bound }));
            }
        }
        serde_json::Value::from(seen).to_string()
    }
}
