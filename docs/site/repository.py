"""MkDocs hook: the pages of the site are the Markdown files of the whole repository, and what they link to.

MkDocs alone knows one folder of documents, and no link may lead out of it. Here pages are named from the root, so that every link
that works in the repository works on the site. In `nav` of mkdocs.yml a folder stands for its pages.
"""
import os
import re

from mkdocs.structure.files import File

HIDDEN = ("build", "runs")


def markdown_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not (folder == root and f in HIDDEN))
        for name in sorted(names):
            if name.endswith(".md"):
                yield os.path.relpath(os.path.join(folder, name), root)


def linked_files(root, page):
    with open(os.path.join(root, page), encoding="utf-8") as file:
        for target in re.findall(r"\]\(([^()\s#]+)", file.read()):
            path = os.path.normpath(os.path.join(os.path.dirname(page), target))
            if os.path.isfile(os.path.join(root, path)):
                yield path


def pages_below(folder, pages):
    below = [page for page in pages if page.startswith(folder + "/")]
    return sorted(below, key=lambda page: (os.path.basename(page) != "README.md", page))


def with_folders(nav, pages):
    if isinstance(nav, list):
        return [with_folders(entry, pages) for entry in nav]
    if isinstance(nav, dict):
        return {title: with_folders(entry, pages) for title, entry in nav.items()}
    return nav if nav.endswith(".md") else pages_below(nav, pages)


def on_files(files, config):
    root = os.path.dirname(config["config_file_path"])
    for file in [file for file in files if file.abs_src_path.startswith(config["docs_dir"] + os.sep)]:
        files.remove(file)
    pages = list(markdown_files(root))
    for path in sorted(set(pages).union(config["extra_css"], *(linked_files(root, page) for page in pages))):
        files.append(File(path, root, config["site_dir"], config["use_directory_urls"]))
    config["nav"] = with_folders(config["nav"], pages)
    return files
