#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| foldcast::hostile::handed_out(bytes));
