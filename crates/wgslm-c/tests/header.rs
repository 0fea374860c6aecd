//! include/wgslm.h is made of the sources: `WGSLM_WRITE=1 cargo test -p wgslm-c --test header` writes it anew.

#[test]
fn the_header_says_what_the_sources_say() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let config = cbindgen::Config::from_file(format!("{folder}/cbindgen.toml")).expect("cbindgen.toml");
    let bindings = cbindgen::Builder::new().with_config(config).with_crate(folder).generate().expect("a header");
    let mut made = Vec::new();
    bindings.write(&mut made);
    let path = format!("{folder}/include/wgslm.h");
    if std::env::var_os("WGSLM_WRITE").is_some() {
        std::fs::write(&path, &made).expect("the header can be written");
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == made, "include/wgslm.h is not what the sources make: WGSLM_WRITE=1 writes it anew");
}
