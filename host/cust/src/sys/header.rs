//! Compares the declarations here with the toolkit's own `cuda.h`, if the machine has one. The PyPI
//! wheel `nvidia-cuda-runtime` contains it without the rest of the toolkit. `CUDA_H` names another
//! path.

use super::*;
use std::ffi::c_int;
use std::fs;
use std::mem::offset_of;
use std::path::PathBuf;

/// The header's text.
fn header() -> Option<String> {
    let named = std::env::var_os("CUDA_H").map(PathBuf::from);
    if let Some(named) = named {
        return Some(fs::read_to_string(&named).expect("CUDA_H names a file"));
    }
    let usual = ["/usr/local/cuda/include/cuda.h", "/usr/include/cuda.h"];
    let text = usual.iter().find_map(|path| fs::read_to_string(path).ok());
    if text.is_none() {
        println!("not checked: no cuda.h here, and CUDA_H names none");
    }
    text
}

/// The number that the header gives a name.
fn number(header: &str, name: &str) -> Option<u32> {
    let value = header.lines().find_map(|line| {
        let value = line
            .trim_start_matches([' ', ','])
            .strip_prefix(name)?
            .trim_start()
            .strip_prefix('=')?;
        value.split([',', '/', ' ']).find(|part| !part.is_empty())
    })?;
    match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    }
}

/// The version of CUDA that the header belongs to, such as 12040.
fn version(header: &str) -> c_int {
    let value = header.lines().find_map(|line| line.strip_prefix("#define CUDA_VERSION "));
    value.and_then(|value| value.trim().parse().ok()).expect("cuda.h has a version")
}

/// The name under which the header declares a function: it declares `cuMemAlloc`, and its
/// preprocessor makes `cuMemAlloc_v2` of it.
fn declared_as<'a>(header: &'a str, name: &'a str) -> &'a str {
    let renamed = |line: &'a str| {
        let (from, to) = line.strip_prefix("#define ")?.split_once(' ')?;
        let to = to.trim().trim_start_matches("__CUDA_API_PTSZ(").trim_end_matches(')');
        (to == name).then_some(from)
    };
    header.lines().find_map(renamed).unwrap_or(name)
}

/// The parameters that the header gives a function.
fn parameters<'a>(header: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let declared = format!("CUDAAPI {name}(");
    let (_, behind) = header.split_once(&declared)?;
    let (list, _) = behind.split_once(')')?;
    let parameters = list.split(',').map(str::trim);
    // C writes `void` for no parameters.
    Some(parameters.filter(|&parameter| parameter != "void").collect())
}

/// The type in Rust of a parameter in C.
fn in_rust(parameter: &str) -> String {
    let end = parameter.rfind([' ', '*']).expect("a parameter has a type and a name") + 1;
    let text = parameter[..end].replace(' ', "");
    let stars = text.chars().filter(|&letter| letter == '*').count();
    let base = text.replace('*', "");
    let (constant, base) = match base.strip_prefix("const") {
        Some(base) => (true, base),
        None => (false, base.as_str()),
    };
    let base = match base {
        "int" => "c_int",
        "unsignedint" => "c_uint",
        "unsignedlonglong" | "cuuint64_t" => "c_ulonglong",
        "unsignedchar" => "c_uchar",
        "char" => "c_char",
        "void" => "c_void",
        "size_t" => "usize",
        "float" => "f32",
        other => other,
    };
    (0..stars).fold(base.to_owned(), |inner, star| {
        format!("*{} {inner}", if constant && star == 0 { "const" } else { "mut" })
    })
}

#[test]
fn names_have_the_headers_numbers() {
    let Some(header) = header() else { return };
    for &(name, expected) in super::types::NUMBERS.iter().chain(super::codes::CODES) {
        assert_eq!(number(&header, name), Some(expected), "{name}");
    }
    let flags = [
        ("CU_STREAM_NON_BLOCKING", CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32),
        ("CU_EVENT_BLOCKING_SYNC", CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32),
        ("CU_EVENT_DISABLE_TIMING", CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32),
    ];
    for (name, expected) in flags {
        assert_eq!(number(&header, name), Some(expected), "{name}");
    }
}

#[test]
fn functions_with_and_without_parameters_are_read() {
    let header = "#define CUDA_VERSION 12040
        CUresult CUDAAPI cuCtxSynchronize(void);
        CUresult CUDAAPI cuMemGetInfo(size_t *free, size_t *total);";
    assert_eq!(version(header), 12040);
    assert_eq!(parameters(header, "cuCtxSynchronize"), Some(vec![]));
    let two = parameters(header, "cuMemGetInfo").expect("it is declared");
    assert_eq!(two.into_iter().map(in_rust).collect::<Vec<_>>(), ["*mut usize"; 2]);
    assert_eq!(parameters(header, "cuInit"), None);
}

#[test]
fn functions_have_the_headers_parameters() {
    let Some(header) = header() else { return };
    let version = version(&header);
    for &(Wanted { name, since }, types) in Table::LINES {
        if since.is_some_and(|since| since > version) {
            println!("not checked: {name} is newer than this cuda.h");
            continue;
        }
        let declared = parameters(&header, declared_as(&header, name)).expect(name);
        let declared: Vec<String> = declared.into_iter().map(in_rust).collect();
        assert_eq!(types, declared, "{name}");
    }
}

#[test]
fn structures_have_the_headers_layout() {
    assert_eq!(offset_of!(CUlaunchConfig, sharedMemBytes), 24);
    assert_eq!(offset_of!(CUlaunchConfig, hStream), 32);
    assert_eq!(offset_of!(CUlaunchConfig, attrs), 40);
    assert_eq!(offset_of!(CUlaunchConfig, numAttrs), 48);
    assert_eq!(size_of::<CUlaunchConfig>(), 56);
    assert_eq!(offset_of!(CUlaunchAttribute, value), 8);
    assert_eq!(size_of::<CUlaunchAttribute>(), 72);
}
