#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tensorflow::hostile::graph(bytes));
