//! The sources below `src/`, parsed, without their tests.

use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, ImplItem, Item};

/// The names from the crate's root to a module. The root has none.
pub(super) type ModulePath = Vec<String>;

/// A source file without its tests.
pub(super) struct SourceFile {
    /// Below `src/`.
    pub path: String,
    /// The module that the file is.
    pub module: ModulePath,
    pub syntax: syn::File,
}

/// Every source file of every room with its path below `src/`, of the crate or of one in
/// `crates/`, whose `lib.rs` only lists its rooms: they may be imported as if they were in
/// `src/`, so they have the same rules.
pub(super) fn texts() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = texts_below(&root.join("src"));
    for entry in fs::read_dir(root.join("crates")).unwrap() {
        let of_crate = texts_below(&entry.unwrap().path().join("src"));
        texts.extend(of_crate.into_iter().filter(|(path, _)| path != "lib.rs"));
    }
    assert!(texts.len() > 30, "the sources have moved");
    texts.sort();
    texts
}

/// The sources below `root`, with their paths there.
pub(super) fn texts_below(root: &Path) -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut paths = Vec::new();
    walk(root, &mut paths);
    let name = |path: &Path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// The source files with these paths and texts, but those of tests, and without the tests
/// in them.
pub(super) fn parse(texts: &[(String, String)]) -> Vec<SourceFile> {
    let parse = |(path, text): &(String, String)| {
        let syntax = syn::parse_file(text).unwrap_or_else(|error| panic!("src/{path}: {error}"));
        SourceFile { path: path.clone(), module: module_path(path), syntax }
    };
    let mut files: Vec<_> = texts.iter().map(parse).collect();
    let mut test_modules = Vec::new();
    for file in &mut files {
        remove_tests(&mut file.syntax.items, &file.module, &mut test_modules);
    }
    files.retain(|file| !test_modules.iter().any(|test| file.module.starts_with(test)));
    files
}

fn module_path(path: &str) -> ModulePath {
    match path.strip_suffix(".rs").unwrap() {
        "lib" => Vec::new(),
        name => name.split('/').map(str::to_owned).collect(),
    }
}

/// Removes the items of tests. Modules of tests that are other files go to `modules`.
fn remove_tests(items: &mut Vec<Item>, within: &[String], modules: &mut Vec<ModulePath>) {
    items.retain_mut(|item| {
        let is_test = is_test(attributes(item));
        match item {
            Item::Mod(module) => {
                let path = [within, &[module.ident.to_string()]].concat();
                if is_test {
                    modules.push(path);
                } else if let Some((_, items)) = &mut module.content {
                    remove_tests(items, &path, modules);
                }
            }
            Item::Impl(item) => item.items.retain(|item| match item {
                ImplItem::Fn(method) => !self::is_test(&method.attrs),
                ImplItem::Const(constant) => !self::is_test(&constant.attrs),
                _ => true,
            }),
            _ => {}
        }
        !is_test
    });
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an item with these attributes is compiled only for tests.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
        }
        meta => meta.path().is_ident("test"),
    })
}
