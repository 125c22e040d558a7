//! Compiles the C shim over libjpeg-turbo's libjpeg API (the library itself is built by `turbojpeg-sys`).

fn main() {
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if system != "linux" {
        println!(
            "cargo::error=headrace is built for Linux only, not for {system}. On Windows use WSL 2, on macOS a Linux container \
             (docs/guides/install.md says how)"
        );
        return;
    }
    println!("cargo:rerun-if-changed=src/jpeg/turbo_shim.c");
    // turbojpeg-sys 1.2 publishes the headers it installed; splitting as it does for several folders.
    let include = std::env::var_os("DEP_TURBOJPEG_INCLUDE")
        .expect("turbojpeg-sys >= 1.2 sets DEP_TURBOJPEG_INCLUDE");
    cc::Build::new()
        .file("src/jpeg/turbo_shim.c")
        .includes(std::env::split_paths(&include))
        .opt_level(2)
        .warnings(true)
        .compile("headrace_turbo_shim");
}
