//! The adapters that the tests run on: both must be there, or every other device test would be moot.

use wgslm::gpu::{Choice, Device, Kind};

/// Opens the adapter whose name holds `name`, with WebGPU's default limits; scripts/test makes both visible.
fn open(name: &str) -> Device {
    let choice = Choice { name: Some(name.to_owned()), default_limits: true, ..Choice::default() };
    pollster::block_on(Device::open(&choice))
        .unwrap_or_else(|e| panic!("{e}; scripts/test installs {name} and shows it"))
}

#[test]
fn lavapipe_opens_by_name() {
    let device = open("llvmpipe");
    assert_eq!(device.caps().kind, Kind::Software);
    assert!(device.caps().name.contains("llvmpipe"), "{}", device.caps().name);
}

#[test]
fn swiftshader_opens_by_name() {
    let device = open("swiftshader");
    assert_eq!(device.caps().kind, Kind::Software);
    assert!(device.caps().name.contains("SwiftShader"), "{}", device.caps().name);
}

#[test]
fn no_gpu_is_picked_by_a_name_that_none_has() {
    let choice = Choice { name: Some("no such adapter".into()), ..Choice::default() };
    let error = pollster::block_on(Device::open(&choice)).expect_err("opened an adapter that is not there").to_string();
    assert!(error.starts_with("device: "), "{error}");
}
